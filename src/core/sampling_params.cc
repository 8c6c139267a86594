#include "core/sampling_params.h"

#include <fmt/format.h>

#include <cmath>

#include "base/rng.h"
#include "core/output_grammar.h"
#include "core/protocol_range.h"

namespace millrace {
namespace {

Status OutOfRange(const char* field, double value, const char* range) {
  return InvalidArgument(fmt::format("{} must be {}, got {}", field, range, value));
}

Status CheckToken(const char* field, TokenId token, int vocab_size) {
  if (token >= 0 && token < vocab_size) return OkStatus();
  return InvalidArgument(
      fmt::format("{}: token id {} is not in the vocabulary [0, {})", field, token, vocab_size));
}

Status CheckTokens(const char* field, const std::vector<TokenId>& tokens, int most,
                   int vocab_size) {
  if (std::ssize(tokens) > most) {
    return InvalidArgument(
        fmt::format("{} has {} entries, the limit is {}", field, tokens.size(), most));
  }
  for (const TokenId token : tokens) MR_RETURN_IF_ERROR(CheckToken(field, token, vocab_size));
  return OkStatus();
}

// Written so that NaN fails.
bool Within(double value, double low, double high) { return value >= low && value <= high; }

Status CheckCounts(const SamplingParams& p) {
  if (p.n < 1 || p.n > kSequencesPerRequestMax) {
    return OutOfRange("n", p.n, fmt::format("in [1, {}]", kSequencesPerRequestMax).c_str());
  }
  if (p.max_tokens && *p.max_tokens < 1)
    return OutOfRange("max_tokens", *p.max_tokens, "at least 1");
  if (p.min_tokens < 0) return OutOfRange("min_tokens", p.min_tokens, "at least 0");
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return InvalidArgument(fmt::format("min_tokens ({}) must not exceed max_tokens ({})",
                                       p.min_tokens, *p.max_tokens));
  }
  if (p.top_k < 0) return OutOfRange("top_k", p.top_k, "at least 0 (0: all)");
  const std::string range = fmt::format("in [0, {}]", kTopLogprobsMax);
  if (p.logprobs && !Within(*p.logprobs, 0, kTopLogprobsMax)) {
    return OutOfRange("logprobs", *p.logprobs, range.c_str());
  }
  if (p.prompt_logprobs && !Within(*p.prompt_logprobs, 0, kTopLogprobsMax)) {
    return OutOfRange("prompt_logprobs", *p.prompt_logprobs, range.c_str());
  }
  return OkStatus();
}

Status CheckReals(const SamplingParams& p) {
  if (!Within(p.temperature, 0, 100))
    return OutOfRange("temperature", p.temperature, "in [0, 100]");
  if (!(p.top_p > 0 && p.top_p <= 1)) return OutOfRange("top_p", p.top_p, "in (0, 1]");
  if (!Within(p.min_p, 0, 1)) return OutOfRange("min_p", p.min_p, "in [0, 1]");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100)) {
    return OutOfRange("repetition_penalty", p.repetition_penalty, "in (0, 100]");
  }
  if (!Within(p.presence_penalty, -2, 2)) {
    return OutOfRange("presence_penalty", p.presence_penalty, "in [-2, 2]");
  }
  if (!Within(p.frequency_penalty, -2, 2)) {
    return OutOfRange("frequency_penalty", p.frequency_penalty, "in [-2, 2]");
  }
  return OkStatus();
}

Status CheckPooling(const SamplingParams& p) {
  if (p.pooling > Pooling::kMean) {
    return OutOfRange("pooling", static_cast<double>(p.pooling), "0, 1 or 2");
  }
  if (!p.pools()) return OkStatus();
  if (p.n == 1 && !p.logprobs && !p.prompt_logprobs && p.grammar.empty()) return OkStatus();
  return InvalidArgument(
      "pooling does not go with n above 1, log-probabilities or a constrained output");
}

Status CheckBadWords(const std::vector<std::vector<TokenId>>& words, int vocab_size) {
  if (words.size() > kBadWordsMax) {
    return InvalidArgument(fmt::format("bad_words has {} token sequences, the limit is {}",
                                       words.size(), kBadWordsMax));
  }
  for (const std::vector<TokenId>& word : words) {
    if (word.empty()) return InvalidArgument("bad_words: a word has no tokens");
    MR_RETURN_IF_ERROR(CheckTokens("bad_words", word, kBadWordTokensMax, vocab_size));
  }
  return OkStatus();
}

Status CheckLogprobTokens(const SamplingParams& p, int vocab_size) {
  MR_RETURN_IF_ERROR(
      CheckTokens("logprob_token_ids", p.logprob_token_ids, kLogprobTokensMax, vocab_size));
  if (p.logprob_token_ids.empty() || p.logprobs) return OkStatus();
  return InvalidArgument("logprob_token_ids needs logprobs");
}

// A beam's score is its log-probability in the model's own distribution, so nothing may change that
// distribution.
Status CheckBeams(const SamplingParams& p) {
  if (!Within(p.length_penalty, -10, 10)) {
    return OutOfRange("length_penalty", p.length_penalty, "in [-10, 10]");
  }
  if (!p.beam_search) return OkStatus();
  if (p.n > kBeamWidthMax) {
    return InvalidArgument(
        fmt::format("beam_search: the width must be at most {}, got {}", kBeamWidthMax, p.n));
  }
  const auto refuse = [](bool given, const char* field) {
    return given ? InvalidArgument(fmt::format("{} does not go with a beam search", field))
                 : OkStatus();
  };
  MR_RETURN_IF_ERROR(refuse(!p.greedy(), "temperature above 0"));
  MR_RETURN_IF_ERROR(refuse(p.min_tokens > 0, "min_tokens"));
  MR_RETURN_IF_ERROR(refuse(p.repetition_penalty != 1, "repetition_penalty"));
  MR_RETURN_IF_ERROR(refuse(p.presence_penalty != 0, "presence_penalty"));
  MR_RETURN_IF_ERROR(refuse(p.frequency_penalty != 0, "frequency_penalty"));
  MR_RETURN_IF_ERROR(refuse(!p.logit_bias.empty(), "logit_bias"));
  MR_RETURN_IF_ERROR(refuse(!p.allowed_token_ids.empty(), "allowed_token_ids"));
  MR_RETURN_IF_ERROR(refuse(!p.bad_words.empty(), "bad_words"));
  MR_RETURN_IF_ERROR(refuse(!p.logprob_token_ids.empty(), "logprob_token_ids"));
  MR_RETURN_IF_ERROR(refuse(p.prompt_logprobs.has_value(), "prompt_logprobs"));
  MR_RETURN_IF_ERROR(refuse(!p.stop.empty(), "stop"));
  MR_RETURN_IF_ERROR(refuse(p.pools(), "pooling"));
  if (p.grammar.empty()) return OkStatus();
  return InvalidArgument("beam_search does not go with an output that is constrained");
}

}  // namespace

Status Validate(const SamplingParams& p, int vocab_size) {
  MR_RETURN_IF_ERROR(CheckCounts(p));
  MR_RETURN_IF_ERROR(CheckReals(p));
  MR_RETURN_IF_ERROR(CheckPooling(p));
  MR_RETURN_IF_ERROR(CheckBadWords(p.bad_words, vocab_size));
  MR_RETURN_IF_ERROR(CheckLogprobTokens(p, vocab_size));
  MR_RETURN_IF_ERROR(CheckBeams(p));
  if (p.logit_bias.size() > kLogitBiasMax) {
    return InvalidArgument(fmt::format("logit_bias has {} entries, the limit is {}",
                                       p.logit_bias.size(), kLogitBiasMax));
  }
  for (const auto& [token, bias] : p.logit_bias) {
    MR_RETURN_IF_ERROR(CheckToken("logit_bias", token, vocab_size));
    if (!Within(bias, -100, 100)) return OutOfRange("logit_bias", bias, "in [-100, 100]");
  }
  MR_RETURN_IF_ERROR(CheckTokens("stop_token_ids", p.stop_token_ids, kStopTokensMax, vocab_size));
  MR_RETURN_IF_ERROR(
      CheckTokens("allowed_token_ids", p.allowed_token_ids, kAllowedTokensMax, vocab_size));
  if (p.stop.size() > kStopStringsMax) {
    return InvalidArgument(
        fmt::format("stop has {} strings, the limit is {}", p.stop.size(), kStopStringsMax));
  }
  for (size_t i = 0; i < p.stop.size(); ++i) {
    const size_t bytes = p.stop[i].size();
    if (bytes > 0 && bytes <= kStopStringBytesMax) continue;
    return InvalidArgument(
        fmt::format("stop[{}] must have 1 to {} bytes, got {}", i, kStopStringBytesMax, bytes));
  }
  if (p.grammar.empty()) return OkStatus();
  // An answer that matches ends with EOS, and nothing may follow it.
  if (p.ignore_eos)
    return InvalidArgument("ignore_eos does not go with an output that is constrained");
  return CheckGrammar(p.grammar);
}

int ProtocolFor(const SamplingParams& params) {
  if (params.pools()) return kProtocolEmbeddings;
  if (params.beam_search || !params.bad_words.empty() || !params.logprob_token_ids.empty()) {
    return kProtocolBeams;
  }
  return params.grammar.empty() ? kProtocolVersionOldest : kProtocolGrammars;
}

int BeamCandidates(const SamplingParams& params, std::span<const TokenId> eos) {
  return params.n + static_cast<int>(params.stop_token_ids.size()) +
         (params.ignore_eos ? 0 : static_cast<int>(eos.size()));
}

std::optional<int> OutputLimit(const SamplingParams& params, int64_t prompt_tokens,
                               int max_model_len) {
  const int64_t room = max_model_len - prompt_tokens;
  if (params.pools()) return room >= 0 ? std::optional(1) : std::nullopt;
  if (params.max_tokens.value_or(1) > room) return std::nullopt;
  return params.max_tokens.value_or(static_cast<int>(room));
}

uint64_t SequenceSeed(uint64_t request_seed, int index) {
  return index == 0 ? request_seed : HashCounter(request_seed, static_cast<uint64_t>(index));
}

}  // namespace millrace
