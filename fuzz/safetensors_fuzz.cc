// The safetensors header: every accepted tensor must lie inside the file, one after another.
#include <cstdint>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto header = millrace::model::ParseSafetensors({data, size});
  if (!header.ok()) return 0;
  uint64_t total = 0;
  for (const auto& [name, entry] : header->tensors) {
    MR_CHECK(entry.begin <= entry.end && entry.end <= size);
    total += entry.end - entry.begin;
  }
  MR_CHECK(total < size);
  return 0;
}
