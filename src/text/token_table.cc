#include "text/token_table.h"

#include <utility>

#include "base/sha256.h"

namespace millrace::text {
namespace {

constexpr std::string_view kMagic = "mrtable1", kStandInMagic = "mrbytes1";
static_assert(kMagic.size() == kStandInMagic.size());

void PutNumber(uint32_t number, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(number >> shift));
}

void PutText(std::string_view text, bool special, std::string& out) {
  PutNumber(static_cast<uint32_t>(text.size() * 2 + (special ? 1 : 0)), out);
  out.append(text);
}

void PutToken(const TokenInfo& token, std::string& out) {
  if (!token.known) return PutText("", false, out);
  PutText(token.special ? token.raw : token.text, token.special, out);
}

// The beginning of a table.
std::string Header(std::string_view magic, size_t tokens, std::span<const TokenId> ends) {
  std::string bytes(magic);
  PutNumber(static_cast<uint32_t>(tokens), bytes);
  PutNumber(static_cast<uint32_t>(ends.size()), bytes);
  for (const TokenId id : ends) PutNumber(static_cast<uint32_t>(id), bytes);
  return bytes;
}

TokenTable Digested(std::string bytes) {
  std::string digest = Hex(Sha256Of(bytes));
  return {std::move(digest), std::make_shared<const std::string>(std::move(bytes))};
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
  std::string bytes = Header(kMagic, tokenizer.vocab_size(), ends);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) PutToken(tokenizer.Token(id), bytes);
  return Digested(std::move(bytes));
}

TokenTable ByteTable() {
  constexpr TokenId kBytes = 256;
  std::string bytes = Header(kStandInMagic, kBytes + 1, std::span(&kBytes, 1));
  for (TokenId byte = 0; byte < kBytes; ++byte) {
    const char text = static_cast<char>(byte);
    PutText({&text, 1}, false, bytes);
  }
  PutText("end", true, bytes);
  return Digested(std::move(bytes));
}

uint32_t TokensIn(const TokenTable& table) {
  const std::string_view bytes = *table.bytes;
  if (bytes.size() < kMagic.size() + 4) return 0;
  uint32_t tokens = 0;
  for (size_t i = 0; i < 4; ++i) {
    tokens |= uint32_t{static_cast<uint8_t>(bytes[kMagic.size() + i])} << (8 * i);
  }
  return tokens;
}

}  // namespace millrace::text
