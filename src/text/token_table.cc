#include "text/token_table.h"

#include <utility>

#include "base/sha256.h"

namespace millrace::text {
namespace {

void PutNumber(uint32_t number, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(number >> shift));
}

void PutToken(const TokenInfo& token, std::string& out) {
  if (!token.known) return PutNumber(0, out);
  const std::string_view bytes = token.special ? token.raw : token.text;
  PutNumber(static_cast<uint32_t>(bytes.size() * 2 + (token.special ? 1 : 0)), out);
  out.append(bytes);
}

}  // namespace

Result<TokenTable> TokenTableOf(const Tokenizer& tokenizer, std::span<const TokenId> ends) {
  if (tokenizer.decoder_kind() == DecoderKind::kWhole) {
    return Unimplemented(
        "output cannot be constrained with this tokenizer: the text of its tokens depends on their "
        "neighbours");
  }
  if (ends.empty()) {
    return FailedPrecondition(
        "output cannot be constrained: the model has no end-of-sequence token");
  }
  std::string bytes = "mrtable1";
  PutNumber(static_cast<uint32_t>(tokenizer.vocab_size()), bytes);
  PutNumber(static_cast<uint32_t>(ends.size()), bytes);
  for (const TokenId id : ends) PutNumber(static_cast<uint32_t>(id), bytes);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) PutToken(tokenizer.Token(id), bytes);
  std::string digest = Hex(Sha256Of(bytes));
  return TokenTable{std::move(digest), std::make_shared<const std::string>(std::move(bytes))};
}

}  // namespace millrace::text
