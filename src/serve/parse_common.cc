#include "serve/parse_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/log.h"
#include "serve/limits.h"

namespace millrace::serve {
namespace {

constexpr int64_t kIntMin = std::numeric_limits<int32_t>::min();
constexpr int64_t kIntMax = std::numeric_limits<int32_t>::max();

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
      IntegerOrError read = ReadInteger(item, kIntMin, kIntMax);
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

// vLLM's clients send -1 for "no seed".
void ReadSeed(FieldReader& reader, SamplingParams& params) {
  reader.Bits("seed", params.seed);
  if (params.seed == std::numeric_limits<uint64_t>::max()) params.seed.reset();
}

void ReadBestOf(FieldReader& reader, const SamplingParams& params) {
  std::optional<int> best_of;
  reader.Int("best_of", 1, kIntMax, best_of);
  if (best_of && *best_of != params.n) {
    reader.Fail(UnsupportedField(
        "best_of", fmt::format("best_of ({}) must equal n ({})", *best_of, params.n)));
  }
}

}  // namespace

void ReadTruncation(FieldReader& reader, int max, Truncation& truncation) {
  std::optional<int> tokens;
  reader.Int("truncate_prompt_tokens", -1, max, tokens);
  if (tokens == 0) {
    reader.Fail("truncate_prompt_tokens",
                "truncate_prompt_tokens must be -1 for the model's length, or at least 1");
  }
  truncation.wanted = tokens.has_value();
  if (tokens != -1) truncation.tokens_max = tokens;
  std::string side = "left";
  reader.String("truncation_side", kNameBytesMax, side);
  if (side != "left" && side != "right") {
    reader.Fail("truncation_side", "truncation_side must be \"left\" or \"right\"");
  }
  truncation.keeps_beginning = side == "right";
}

void ReadSampling(FieldReader& reader, const SamplingDefaults& defaults, SamplingParams& params) {
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.top_k = defaults.top_k.value_or(params.top_k);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);

  reader.Int("n", 1, kSequencesPerRequestMax, params.n);
  reader.Int("min_tokens", 0, kIntMax, params.min_tokens);
  reader.Number("temperature", params.temperature);
  reader.Number("top_p", params.top_p);
  reader.Int("top_k", -1, kIntMax, params.top_k);
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
  ReadBestOf(reader, params);
}

void ReadEnvelope(FieldReader& reader, GenerationOptions& options) {
  reader.String("model", kNameBytesMax, options.model);
  reader.Bool("stream", options.stream);
  reader.Object("stream_options", [&](const Json& object) {
    if (!options.stream) {
      return reader.Fail("stream_options", "stream_options needs \"stream\": true");
    }
    FieldReader inner(object, "stream_options.");
    inner.Bool("include_usage", options.include_usage);
    inner.Bool("continuous_usage_stats", options.continuous_usage);
    if (inner.error()) return reader.Fail(*inner.error());
    inner.Ignore("include_obfuscation", true);
    reader.AddIgnoredOf(inner);
  });
  reader.Bool("return_metrics", options.metrics);
  if (options.metrics && options.stream && !options.include_usage) {
    reader.Fail(
        "return_metrics",
        "return_metrics needs \"stream_options\": {\"include_usage\": true} in a stream: the "
        "metrics are in that event");
  }
  reader.Bool("return_token_ids", options.token_ids);
  reader.Bool("return_tokens_as_token_ids", options.tokens_as_ids);
  ReadTruncation(reader, kIntMax, options.truncation);
  reader.Int("priority", kIntMin, kIntMax, options.priority);
  reader.String("cache_salt", kNameBytesMax, options.cache_salt);
  reader.String("request_id", kNameBytesMax, options.request_id);
  // The server puts it into headers and event ids.
  if (std::ranges::any_of(options.request_id,
                          [](unsigned char c) { return c < ' ' || c == 127; })) {
    reader.Fail("request_id", "request_id must not contain control characters");
  }
}

void CheckSampling(FieldReader& reader, const SamplingParams& params, int vocab_size) {
  if (reader.failed()) return;
  Status status = Validate(params, vocab_size);
  if (status.ok()) return;
  // Validate's messages begin with the field's name.
  const std::string& message = status.message();
  reader.Fail(message.substr(0, message.find_first_of(" :")), message);
}

void RefuseUnsupported(FieldReader& reader) {
  reader.Unsupported("use_beam_search", "sample n sequences instead");
  reader.Unsupported("logits_processors", "use logit_bias");
  reader.Unsupported("prompt_embeds", "send text or token ids");
  reader.Unsupported("bad_words", "use logit_bias");
  reader.Unsupported("logprob_token_ids", "use logprobs to get the most likely tokens");
  reader.Unsupported("repetition_detection", "use stop or the penalties");
}

void RefuseUnsupportedConversation(FieldReader& reader) {
  reader.Unsupported("chat_template", "the model's own template is used");
  reader.Unsupported("documents", "send chat_template_kwargs: {\"documents\": [...]}");
}

Parsed<Json> ParseBody(std::string_view body) {
  Result<Json> json = ParseJson(body);
  if (!json.ok()) {
    return BadField("",
                    fmt::format("The request body is not valid JSON: {}", json.status().message()));
  }
  if (!json->is_object()) {
    return BadField("",
                    fmt::format("The request body must be a JSON object, got {}", Describe(*json)));
  }
  return std::move(json).value();
}

OrderedJson ParseOrderedFields(std::string_view body, const std::vector<std::string>& names) {
  const auto wanted = [&](int depth, OrderedJson::parse_event_t event, OrderedJson& parsed) {
    if (depth != 1 || event != OrderedJson::parse_event_t::key) return true;
    return std::ranges::find(names, parsed.get_ref<const std::string&>()) != names.end();
  };
  return OrderedJson::parse(body, wanted);
}

bool KeysWithinLimit(const Json& value) {
  if (!value.is_structured()) return true;
  if (value.is_object() && value.size() > kObjectKeysMax) return false;
  return std::ranges::all_of(value, KeysWithinLimit);
}

void RefuseKeys(FieldReader& reader, std::string_view field) {
  reader.Fail(field, fmt::format("an object in {} has more than {} keys", field, kObjectKeysMax));
}

std::vector<TokenId> ReadTokenIds(FieldReader& reader, const char* field, const std::string& where,
                                  const Json& list, int vocab_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (const Json& item : list) {
    IntegerOrError read = ReadInteger(item, 0, int64_t{vocab_size} - 1);
    if (!read.error.empty()) {
      reader.Fail(field, fmt::format("{}[{}]: a token id {}; the vocabulary size is {}", where,
                                     tokens.size(), read.error, vocab_size));
      return {};
    }
    tokens.push_back(static_cast<TokenId>(read.value));
  }
  return tokens;
}

void ReadPrompts(FieldReader& reader, const char* field, int vocab_size,
                 std::vector<Prompt>& prompts) {
  const Json* given = reader.Find(field);
  if (given == nullptr) return reader.Fail(field, fmt::format("{} is required", field));
  if (given->is_string()) {
    prompts.emplace_back(given->get<std::string>());
    return;
  }
  if (!given->is_array() || given->empty()) {
    return reader.Fail(field, fmt::format("{} must be a string, a list of strings, a list of token "
                                          "ids or a list of lists of token ids, got {}",
                                          field, Describe(*given)));
  }
  if (given->front().is_number()) {
    prompts.emplace_back(ReadTokenIds(reader, field, field, *given, vocab_size));
    return;
  }
  if (given->size() > kPromptsMax) {
    return reader.Fail(field, fmt::format("{} has {} prompts, the limit is {}", field,
                                          given->size(), kPromptsMax));
  }
  const bool texts = given->front().is_string();
  for (const Json& item : *given) {
    const std::string where = fmt::format("{}[{}]", field, prompts.size());
    if (texts && item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (!texts && item.is_array() && !item.empty()) {
      prompts.emplace_back(ReadTokenIds(reader, field, where, item, vocab_size));
    } else {
      return reader.Fail(field,
                         fmt::format("{} must be {}, got {}", where,
                                     texts ? "a string" : "a list of token ids", Describe(item)));
    }
  }
}

}  // namespace millrace::serve
