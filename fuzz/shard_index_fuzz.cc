// model.safetensors.index.json: an accepted index has at least one tensor with a file name.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/weight_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto index = millrace::model::ParseShardIndex({reinterpret_cast<const char*>(data), size});
  if (index.ok()) MR_CHECK(!index->file_of.empty());
  return 0;
}
