// An untrusted tokenizer.json loads or gives a Status; a loaded one can encode and decode.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  auto tokenizer = text::Tokenizer::FromJson({reinterpret_cast<const char*>(data), size});
  if (!tokenizer.ok()) return 0;
  auto ids = (*tokenizer)->Encode("hello \u65e5 <s>", {});
  if (ids.ok()) (void)(*tokenizer)->Decode(*ids, true);
  MR_CHECK((*tokenizer)->vocab_size() > 0);
  return 0;
}
