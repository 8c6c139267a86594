// For any ids and any prompt, pieces are valid UTF-8; without a prompt they equal the whole decode.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/testing/source_path.h"
#include "text/detokenizer.h"

using millrace::TokenId;
using namespace millrace::text;

namespace {

std::string Stream(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const TokenId> ids,
                   bool skip, std::span<const TokenId> prompt) {
  Detokenizer detokenizer(tokenizer, skip, prompt);
  std::string text;
  for (TokenId id : ids) {
    std::string piece = detokenizer.Push(id);
    MR_CHECK(IsValidUtf8(piece));
    text += piece;
  }
  return text + detokenizer.Flush();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::shared_ptr<const Tokenizer>> kTokenizers = [] {
    std::vector<std::shared_ptr<const Tokenizer>> out;
    for (const char* name : {"byte_level", "byte_fallback", "unigram", "word_piece"}) {
      out.push_back(
          Tokenizer::Load(millrace::SourcePath("src/text/testdata/tokenizers/") + name).value());
    }
    return out;
  }();
  if (size < 2) return 0;
  const auto& tokenizer = kTokenizers[data[0] % kTokenizers.size()];
  const bool skip = (data[0] & 64) != 0;
  std::vector<TokenId> ids;
  for (size_t i = 2; i + 1 < size; i += 2) ids.push_back((data[i] | data[i + 1] << 8) % 400 - 1);
  MR_CHECK(Stream(tokenizer, ids, skip, {}) == tokenizer->Decode(ids, skip));
  const std::span<const TokenId> all(ids);
  const size_t cut = ids.empty() ? 0 : data[1] % ids.size();
  MR_CHECK(IsValidUtf8(Stream(tokenizer, all.subspan(cut), skip, all.first(cut))));
  return 0;
}
