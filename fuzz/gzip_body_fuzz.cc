// A body that inflates has no more than the limit, and the same bytes with a larger one.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "serve/http/gzip_body.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kLimit = 4096;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto plain = millrace::serve::InflateGzip(body, kLimit);
  if (!plain.ok()) return 0;
  MR_CHECK(plain->size() <= kLimit);
  const auto again = millrace::serve::InflateGzip(body, kLimit * 2);
  MR_CHECK(again.ok() && *again == *plain);
  return 0;
}
