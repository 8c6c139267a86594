#include "serve/request/parse_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "serve/http/limits.h"
#include "text/tokenizer_config.h"

namespace millrace::serve {
namespace {

constexpr int64_t kIntMin = std::numeric_limits<int32_t>::min();
constexpr int64_t kIntMax = std::numeric_limits<int32_t>::max();

// Strings, lists and objects in the text, their keys included. Any text is good.
size_t PartsOf(std::string_view body) {
  size_t parts = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    parts += (c == '"' && in_string) || (!in_string && (c == '[' || c == '{')) ? 1 : 0;
  }
  return parts;
}

size_t PartsOf(const Json& value) {
  size_t parts = value.is_string() || value.is_structured() ? 1 : 0;
  if (value.is_object()) parts += value.size();
  if (!value.is_structured()) return parts;
  for (const Json& item : value) parts += PartsOf(item);
  return parts;
}

ApiError TooManyParts() {
  return BadField("", fmt::format("The request body has more than {} strings, lists and objects; "
                                  "send smaller requests.",
                                  kBodyPartsMax));
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
    reader.Fail(
        "truncation_side",
        fmt::format("truncation_side must be \"left\" or \"right\", got {}", Describe(side)));
  }
  truncation.keeps_beginning = side == "right";
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
  reader.String("prompt_cache_key", kNameBytesMax, options.prompt_cache_key);
  reader.String("request_id", kNameBytesMax, options.request_id);
  // The server puts it into headers and event ids.
  if (std::ranges::any_of(options.request_id,
                          [](unsigned char c) { return c < ' ' || c == 127; })) {
    reader.Fail("request_id", "request_id must not contain control characters");
  }
}

void RefuseUnsupported(FieldReader& reader) {
  reader.Unsupported("logits_processors", "use logit_bias");
  reader.Unsupported("prompt_embeds", "send text or token ids");
  reader.Unsupported("repetition_detection", "use stop or the penalties");
}

void ReadTemplate(FieldReader& reader, const ParseContext& context, Conversation& conversation) {
  reader.String("chat_template", text::kChatTemplateBytesMax, conversation.chat_template);
  // Without any tag it is the name of one of the model's templates.
  if (text::IsTemplateSource(conversation.chat_template) && !context.takes_templates) {
    reader.Fail(
        UnsupportedField("chat_template",
                         "chat_template is not supported; the model's own template is used "
                         "unless the server is started with --trust-request-chat-template"));
  }
  reader.Unsupported("documents", "send chat_template_kwargs: {\"documents\": [...]}");
}

Parsed<Json> ParseBody(std::string_view body) {
  if (body.size() / 2 > kBodyPartsMax && PartsOf(body) > kBodyPartsMax) return TooManyParts();
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

OrderedFields FieldsOf(std::string_view body) {
  return [body](const std::vector<std::string>& names) {
    const auto wanted = [&](int depth, OrderedJson::parse_event_t event, OrderedJson& parsed) {
      if (depth != 1 || event != OrderedJson::parse_event_t::key) return true;
      return std::ranges::find(names, parsed.get_ref<const std::string&>()) != names.end();
    };
    return OrderedJson::parse(body, wanted);
  };
}

OrderedFields FieldsOf(const OrderedJson& body) {
  return [&body](const std::vector<std::string>& names) {
    OrderedJson fields = OrderedJson::object();
    for (const std::string& name : names) {
      if (body.contains(name)) fields[name] = body[name];
    }
    return fields;
  };
}

std::optional<ApiError> CheckParts(const Json& body) {
  if (PartsOf(body) <= kBodyPartsMax) return std::nullopt;
  return TooManyParts();
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
