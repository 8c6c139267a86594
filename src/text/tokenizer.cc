#include "text/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "base/file.h"
#include "text/ffi.h"
#include "text/tokenizer_config.h"

namespace millrace::text {

void Tokenizer::Deleter::operator()(MrtTokenizer* handle) const { mrt_tokenizer_free(handle); }

Tokenizer::Tokenizer(MrtTokenizer* handle) : handle_(handle) {
  vocab_size_ = static_cast<int>(mrt_tokenizer_vocab_size(handle));
  MrtDecoderInfo decoder = mrt_tokenizer_decoder_info(handle);
  decoder_kind_ = static_cast<DecoderKind>(decoder.kind);
  strip_left_ = static_cast<int>(decoder.strip_left);
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (TokenInfo token = Token(id); token.special && !token.raw.empty()) {
      special_tokens_.emplace_back(token.raw);
    }
  }
}

Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromJson(std::string_view tokenizer_json) {
  MR_RETURN_IF_ERROR(CheckRustAbi());
  MrtTokenizer* handle = nullptr;
  RustBytes error;
  MrtCode code = mrt_tokenizer_new(Data(tokenizer_json), tokenizer_json.size(), kVocabMax, &handle,
                                   error.out());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  auto tokenizer = std::shared_ptr<const Tokenizer>(new Tokenizer(handle));
  if (tokenizer->vocab_size() == 0) return InvalidArgument("the vocabulary is empty");
  return tokenizer;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  MR_ASSIGN_OR_RETURN(std::string json, ReadFile(path, kTokenizerFileBytesMax));
  Result<std::shared_ptr<const Tokenizer>> loaded = FromJson(json);
  if (!loaded.ok()) return loaded.status().WithContext(path);
  MR_ASSIGN_OR_RETURN(TokenizerConfig config, LoadTokenizerConfig(folder));
  auto& tokenizer = const_cast<Tokenizer&>(**loaded);  // not shared yet
  auto id_of = [&](const std::optional<std::string>& token) {
    return token.has_value() ? tokenizer.IdOf(*token) : std::nullopt;
  };
  tokenizer.bos_ = id_of(config.bos_token);
  tokenizer.eos_ = id_of(config.eos_token);
  tokenizer.unk_ = id_of(config.unk_token);
  tokenizer.pad_ = id_of(config.pad_token);
  return loaded;
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  uint32_t flags = 0;
  if (options.add_special_tokens) flags |= MRT_ENCODE_ADD_SPECIAL;
  if (options.parse_special) flags |= MRT_ENCODE_PARSE_SPECIAL;
  if (options.guarded) flags |= MRT_ENCODE_GUARDED;
  RustIds ids;
  RustBytes error;
  MrtCode code = mrt_tokenizer_encode(handle_.get(), Data(text), text.size(), flags,
                                      kEncodeBytesMax, ids.out(), error.out());
  if (code == MRT_LIMIT) return Status(StatusCode::kTooLarge, error.ToString());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  return ids.ToVector();
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  // A negative id becomes a huge one, which no vocabulary contains.
  RustBytes text;
  RustBytes error;
  MrtCode code = mrt_tokenizer_decode(handle_.get(), reinterpret_cast<const uint32_t*>(ids.data()),
                                      ids.size(), skip_special ? 1 : 0, text.out(), error.out());
  // A decoder that fails gives no text. The ids come from the model, so there is no sender to
  // blame.
  return code == MRT_OK ? text.ToString() : std::string();
}

TokenInfo Tokenizer::Token(TokenId id) const {
  MrtView fragment;
  MrtView raw;
  uint32_t flags = mrt_tokenizer_token(handle_.get(), static_cast<uint32_t>(id), &fragment, &raw);
  return {.known = (flags & MRT_TOKEN_KNOWN) != 0,
          .special = (flags & MRT_TOKEN_SPECIAL) != 0,
          .byte = (flags & MRT_TOKEN_BYTE) != 0,
          .raw = ViewOf(raw),
          .text = ViewOf(fragment)};
}

std::optional<TokenId> Tokenizer::IdOf(std::string_view raw) const {
  uint32_t id = 0;
  if (mrt_tokenizer_token_to_id(handle_.get(), Data(raw), raw.size(), &id) == 0) {
    return std::nullopt;
  }
  return static_cast<TokenId>(id);
}

}  // namespace millrace::text
