// How tokens are chosen: the fields that completions and chats share.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/log.h"
#include "serve/http/limits.h"
#include "serve/request/parse_common.h"

namespace millrace::serve {
namespace {

constexpr int64_t kSamplingIntMin = std::numeric_limits<int32_t>::min();
constexpr int64_t kSamplingIntMax = std::numeric_limits<int32_t>::max();

void ReadLogitBias(FieldReader& reader, SamplingParams& params) {
  reader.Object("logit_bias", [&](const Json& biases) {
    for (const auto& [key, bias] : biases.items()) {
      TokenId token = 0;
      const char* end = key.data() + key.size();
      auto [rest, error] = std::from_chars(key.data(), end, token);
      if (error != std::errc() || rest != end) {
        return reader.Fail("logit_bias", fmt::format("logit_bias: key \"{}\" is not a token id",
                                                     Printable(key, 32)));
      }
      if (!bias.is_number()) {
        return reader.Fail("logit_bias", fmt::format("logit_bias[{}] must be a number, got {}",
                                                     token, Describe(bias)));
      }
      params.logit_bias.emplace_back(token, bias.get<float>());
    }
  });
}

// Their range is checked with the rest of the parameters.
void ReadTokens(FieldReader& reader, const char* name, std::vector<TokenId>& tokens) {
  reader.Array(name, [&](const Json& list) {
    for (const Json& item : list) {
      IntegerOrError read = ReadInteger(item, kSamplingIntMin, kSamplingIntMax);
      if (!read.error.empty()) {
        return reader.Fail(name, fmt::format("{}[{}] {}", name, tokens.size(), read.error));
      }
      tokens.push_back(static_cast<TokenId>(read.value));
    }
  });
}

// An empty list would leave no token.
void ReadAllowedTokens(FieldReader& reader, SamplingParams& params) {
  const Json* list = reader.Find("allowed_token_ids");
  if (list != nullptr && list->is_array() && list->empty()) {
    return reader.Fail("allowed_token_ids", "allowed_token_ids must have a token at least");
  }
  ReadTokens(reader, "allowed_token_ids", params.allowed_token_ids);
}

// vLLM's clients send -1 for "no seed". As bits it would be the seed 2^64 - 1.
void ReadSeed(FieldReader& reader, SamplingParams& params) {
  const Json* seed = reader.Find("seed");
  const bool none = seed != nullptr && seed->is_number_integer() && !seed->is_number_unsigned() &&
                    seed->get<int64_t>() == -1;
  if (!none) reader.Bits("seed", params.seed);
}

// The texts; they become token ids once the model is known (BadWordTokens).
void ReadBadWords(FieldReader& reader, GenerationOptions& options) {
  reader.Array("bad_words", [&](const Json& list) {
    if (list.size() > kBadWordTextsMax) {
      return reader.Fail("bad_words", fmt::format("bad_words has {} words, the limit is {}",
                                                  list.size(), kBadWordTextsMax));
    }
    for (const Json& item : list) {
      const bool usual = item.is_string() && !item.get_ref<const std::string&>().empty() &&
                         item.get_ref<const std::string&>().size() <= kBadWordBytesMax;
      if (!usual) {
        return reader.Fail("bad_words",
                           fmt::format("bad_words[{}] must be a string of 1 to {} bytes, got {}",
                                       options.bad_words.size(), kBadWordBytesMax, Describe(item)));
      }
      options.bad_words.push_back(item.get<std::string>());
    }
  });
}

// With best_of, more sequences are generated than are answered.
void ReadBestOf(FieldReader& reader, GenerationOptions& options) {
  SamplingParams& params = options.params;
  std::optional<int> best_of;
  reader.Int("best_of", 1, kSequencesPerRequestMax, best_of);
  if (!best_of || reader.failed()) return;
  if (*best_of < params.n) {
    return reader.Fail("best_of",
                       fmt::format("best_of ({}) must be at least n ({})", *best_of, params.n));
  }
  if (*best_of == params.n) return;
  if (options.stream) {
    return reader.Fail("best_of",
                       "best_of above n does not go with \"stream\": true: which answers are the "
                       "best is known at their end");
  }
  options.answers = params.n;
  params.n = *best_of;
}

// A beam search chooses by log-probability alone. Defaults of the model that would change it do not
// apply.
void ReadBeams(FieldReader& reader, SamplingParams& params) {
  reader.Bool("use_beam_search", params.beam_search);
  reader.Number("length_penalty", params.length_penalty);
  if (!params.beam_search) {
    if (std::exchange(params.length_penalty, 1.0) != 1.0) reader.AddIgnored("length_penalty");
    return;
  }
  if (reader.Find("temperature") == nullptr) params.temperature = 0;
  if (reader.Find("repetition_penalty") == nullptr) params.repetition_penalty = 1;
}

}  // namespace

void ReadSampling(FieldReader& reader, const SamplingDefaults& defaults,
                  GenerationOptions& options) {
  SamplingParams& params = options.params;
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.top_k = defaults.top_k.value_or(params.top_k);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);

  reader.Int("n", 1, kSequencesPerRequestMax, params.n);
  reader.Int("min_tokens", 0, kSamplingIntMax, params.min_tokens);
  reader.Number("temperature", params.temperature);
  reader.Number("top_p", params.top_p);
  reader.Int("top_k", -1, kSamplingIntMax, params.top_k);
  if (params.top_k == -1) params.top_k = 0;  // vLLM also accepts -1 for "all"
  reader.Number("min_p", params.min_p);
  reader.Number("repetition_penalty", params.repetition_penalty);
  reader.Number("presence_penalty", params.presence_penalty);
  reader.Number("frequency_penalty", params.frequency_penalty);
  ReadSeed(reader, params);
  ReadLogitBias(reader, params);
  ReadTokens(reader, "stop_token_ids", params.stop_token_ids);
  ReadAllowedTokens(reader, params);
  reader.StringOrList("stop", params.stop);
  reader.Bool("include_stop_str_in_output", params.include_stop_str_in_output);
  reader.Bool("ignore_eos", params.ignore_eos);
  reader.Bool("skip_special_tokens", params.skip_special_tokens);
  reader.Int("prompt_logprobs", 0, kTopLogprobsMax, params.prompt_logprobs);
  ReadTokens(reader, "logprob_token_ids", params.logprob_token_ids);
  ReadBadWords(reader, options);
  ReadBestOf(reader, options);
  ReadBeams(reader, params);
}

void CheckSampling(FieldReader& reader, int vocab_size, GenerationOptions& options) {
  if (reader.failed()) return;
  SamplingParams& params = options.params;
  // The likeliest answers are known by their log-probabilities.
  if (options.answers && !params.beam_search) {
    options.hides_logprobs = !params.logprobs;
    params.logprobs = params.logprobs.value_or(0);
  }
  if (params.beam_search && !options.bad_words.empty()) {
    return reader.Fail("bad_words", "bad_words does not go with a beam search");
  }
  Status status = Validate(params, vocab_size);
  if (status.ok()) return;
  // Validate's messages begin with the field's name.
  const std::string& message = status.message();
  const std::string field = message.substr(0, message.find_first_of(" :["));
  reader.Fail(field == "beam_search" ? "use_beam_search" : field, message);
}

}  // namespace millrace::serve
