#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "text/ffi.h"
#include "text/tokenizer_config.h"

namespace millrace::text {
namespace {

constexpr MrtTokenizerLimits kTokenizerLimits = {
    .vocab_max = kVocabMax,
    .token_bytes_max = kTokenBytesMax,
    .added_bytes_max = kAddedTokensBytesMax,
    .steps_max = kTokenizerStepsMax,
    .step_depth_max = kTokenizerStepDepthMax,
    .step_text_bytes_max = kTokenizerStepTextBytesMax,
    .decoder_growth_max = kDecoderGrowthMax,
    .framing_tokens_max = kFramingTokensMax,
    .word_chars_max = kWordPieceCharsMax,
    .growth_max = kNormalizerGrowthMax,
    .growth_bytes_free = kNormalizerBytesFree,
    .regex_retries_max = kRegexRetriesMax,
};

uint32_t FlagsOf(const EncodeOptions& options) {
  uint32_t flags = 0;
  if (options.add_special_tokens) flags |= MRT_ENCODE_ADD_SPECIAL;
  if (options.parse_special) flags |= MRT_ENCODE_PARSE_SPECIAL;
  if (options.guarded) flags |= MRT_ENCODE_GUARDED;
  return flags;
}

Status Undivided(size_t bytes, size_t bytes_max) {
  return Status(
      StatusCode::kTooLarge,
      fmt::format("a stretch of {} bytes of the text has no place where it can be divided, "
                  "such as a space between words; the limit is {}",
                  bytes, bytes_max));
}

}  // namespace

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

namespace {

// The files state an id, and transformers gives the token another one.
void LogOtherIds(const Tokenizer& tokenizer, const std::vector<AddedToken>& added,
                 const std::string& folder) {
  constexpr int kShown = 5;
  std::string shown;
  int count = 0;
  for (const AddedToken& token : added) {
    const std::optional<TokenId> id = tokenizer.IdOf(token.content);
    if (!token.stated_id || !id || *id == *token.stated_id) continue;
    if (++count > kShown) continue;
    shown += fmt::format("{}{} is {}, not {}", count == 1 ? "" : "; ", Printable(token.content, 60),
                         *id, *token.stated_id);
  }
  if (count == 0) return;
  MR_LOG(warn,
         "{}: the ids of {} added tokens in tokenizer_config.json or added_tokens.json are not "
         "those of tokenizer.json, which count as in transformers: {}{}",
         folder, count, shown, count > kShown ? "; ..." : "");
}

// tokenizer_config.json states whether a token is put around a text, and tokenizer.json does the
// opposite.
void LogFraming(const Tokenizer& tokenizer, const TokenizerConfig& config,
                const std::string& folder) {
  const auto around = tokenizer.Encode("", {.add_special_tokens = true});
  if (!around.ok()) return;
  const auto note = [&](const char* key, std::optional<bool> stated, std::optional<TokenId> id,
                        bool first) {
    if (!stated || !id) return;
    const bool done = !around->empty() && (first ? around->front() : around->back()) == *id;
    if (done == *stated) return;
    MR_LOG(warn,
           "{}/tokenizer_config.json: {} is {}, but tokenizer.json {} {} to a text; tokenizer.json "
           "counts",
           folder, key, *stated, done ? "adds" : "does not add",
           Printable(tokenizer.Token(*id).raw, 60));
  };
  note("add_bos_token", config.add_bos_token, tokenizer.bos(), true);
  note("add_eos_token", config.add_eos_token, tokenizer.eos(), false);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromJson(std::string_view tokenizer_json,
                                                             const std::vector<AddedToken>& added) {
  MR_RETURN_IF_ERROR(CheckRustAbi());
  MrtTokenizer* handle = nullptr;
  RustBytes error;
  const std::string more = ToJsonText(added);
  MrtCode code = mrt_tokenizer_new(Data(tokenizer_json), tokenizer_json.size(), Data(more),
                                   more.size(), kTokenizerLimits, &handle, error.out());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  auto tokenizer = std::shared_ptr<const Tokenizer>(new Tokenizer(handle));
  if (tokenizer->vocab_size() == 0) return InvalidArgument("the vocabulary is empty");
  return tokenizer;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  MR_ASSIGN_OR_RETURN(std::string json, ReadFile(path, kTokenizerFileBytesMax));
  MR_ASSIGN_OR_RETURN(const std::vector<AddedToken> added, LoadAddedTokens(folder));
  Result<std::shared_ptr<const Tokenizer>> loaded = FromJson(json, added);
  if (!loaded.ok()) return loaded.status().WithContext(path);
  LogOtherIds(**loaded, added, folder);
  MR_ASSIGN_OR_RETURN(TokenizerConfig config, LoadTokenizerConfig(folder));
  auto& tokenizer = const_cast<Tokenizer&>(**loaded);  // not shared yet
  auto id_of = [&](const std::optional<std::string>& token) {
    return token.has_value() ? tokenizer.IdOf(*token) : std::nullopt;
  };
  tokenizer.bos_ = id_of(config.bos_token);
  tokenizer.eos_ = id_of(config.eos_token);
  tokenizer.unk_ = id_of(config.unk_token);
  tokenizer.pad_ = id_of(config.pad_token);
  LogFraming(tokenizer, config, folder);
  return loaded;
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  MR_ASSIGN_OR_RETURN(EncodedText encoded, EncodeWithin(text, options, {}));
  return std::move(encoded.tokens);
}

Result<EncodedText> Tokenizer::EncodeWithin(std::string_view text, const EncodeOptions& options,
                                            const EncodeBounds& bounds) const {
  const uint32_t flags = FlagsOf(options);
  if (text.size() <= bounds.part_bytes) {
    MR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, EncodePart(text, flags));
    return EncodedText{.tokens = std::move(tokens)};
  }
  std::deque<std::vector<TokenId>> parts;
  size_t count = 0;
  size_t begin = bounds.keeps_end ? text.size() : 0;  // of what is encoded
  size_t end = begin;
  while (end - begin < text.size() && count <= bounds.tokens_max) {
    if (bounds.stops && bounds.stops())
      return Status(StatusCode::kCancelled, "nobody waits for it");
    const size_t from = bounds.keeps_end ? PartBegin(text, begin, bounds) : end;
    const size_t to = bounds.keeps_end ? begin : PartEnd(text, end, bounds);
    if (to - from > bounds.undivided_bytes_max) {
      return Undivided(to - from, bounds.undivided_bytes_max);
    }
    const uint32_t inside = from > 0 ? MRT_ENCODE_INSIDE : 0;
    MR_ASSIGN_OR_RETURN(
        std::vector<TokenId> tokens,
        EncodePart(text.substr(from, to - from), flags | MRT_ENCODE_CONTENT_ONLY | inside));
    count += tokens.size();
    bounds.keeps_end ? parts.push_front(std::move(tokens)) : parts.push_back(std::move(tokens));
    (bounds.keeps_end ? begin : end) = bounds.keeps_end ? from : to;
  }
  std::vector<TokenId> content;
  content.reserve(count);
  for (const std::vector<TokenId>& part : parts) {
    content.insert(content.end(), part.begin(), part.end());
  }
  RustIds framed;
  RustBytes error;
  const MrtCode code =
      mrt_tokenizer_frame(handle_.get(), reinterpret_cast<const uint32_t*>(content.data()),
                          content.size(), flags, framed.out(), error.out());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  return EncodedText{.tokens = framed.ToVector(), .whole = end - begin == text.size()};
}

Result<std::vector<TokenId>> Tokenizer::EncodePart(std::string_view part, uint32_t flags) const {
  RustIds ids;
  RustBytes error;
  MrtCode code = mrt_tokenizer_encode(handle_.get(), Data(part), part.size(), flags,
                                      kEncodeBytesMax, ids.out(), error.out());
  if (code == MRT_LIMIT) return Status(StatusCode::kTooLarge, error.ToString());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  return ids.ToVector();
}

// A little more than may be encoded at once is enough to see that there is no place.
size_t Tokenizer::PartEnd(std::string_view text, size_t begin, const EncodeBounds& bounds) const {
  if (text.size() - begin <= bounds.part_bytes) return text.size();
  const std::string_view near =
      text.substr(begin, bounds.undivided_bytes_max + bounds.part_bytes + 1);
  return begin +
         mrt_tokenizer_place_after(handle_.get(), Data(near), near.size(), bounds.part_bytes);
}

size_t Tokenizer::PartBegin(std::string_view text, size_t end, const EncodeBounds& bounds) const {
  if (end <= bounds.part_bytes) return 0;
  const size_t near_bytes = std::min(end, bounds.undivided_bytes_max + bounds.part_bytes + 1);
  const std::string_view near = text.substr(end - near_bytes, near_bytes);
  return end - near_bytes +
         mrt_tokenizer_place_before(handle_.get(), Data(near), near.size(),
                                    near.size() - bounds.part_bytes);
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
