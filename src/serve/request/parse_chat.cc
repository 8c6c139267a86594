#include <fmt/format.h>

#include <limits>

#include "serve/http/limits.h"
#include "serve/request/ignored_fields.h"
#include "serve/request/parse_common.h"
#include "serve/request/request.h"
#include "text/tokenizer_config.h"

namespace millrace::serve {
namespace {

void ReadChatLogprobs(FieldReader& reader, SamplingParams& params) {
  bool logprobs = false;
  std::optional<int> top;
  reader.Bool("logprobs", logprobs);
  reader.Int("top_logprobs", 0, kTopLogprobsMax, top);
  if (top.value_or(0) > 0 && !logprobs) {
    reader.Fail("top_logprobs", "top_logprobs needs \"logprobs\": true");
  }
  if (logprobs || !params.logprob_token_ids.empty()) params.logprobs = top.value_or(0);
}

void ReadChatLengths(FieldReader& reader, SamplingParams& params) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  reader.Int("max_tokens", 1, kMax, params.max_tokens);
  reader.Int("max_completion_tokens", 1, kMax, params.max_tokens);
}

// A call that is required wins over response_format, which has no effect then.
void ReadChatConstraint(FieldReader& reader, const OrderedFields& fields, ChatRequest& request) {
  ReadConstraint(reader, fields, request.options);
  const bool calls = request.tools.choice == ToolUse::Choice::kRequired;
  if (!calls || !request.options.constraint_field.starts_with("response_format")) return;
  request.options.params.grammar.clear();
  request.options.constraint_field.clear();
  reader.AddIgnored("response_format");
}

void RefuseUnsupportedInChat(FieldReader& reader) {
  reader.Unsupported("functions", "use tools");
  const Json* call = reader.Find("function_call");
  if (call != nullptr && *call != Json("none") && *call != Json("auto")) {
    reader.Unsupported("function_call", "use tools");
  }
  reader.Unsupported("audio", "only text output is supported");
  reader.Array("modalities", [&](const Json& list) {
    for (const Json& item : list) {
      if (item != Json("text")) {
        return reader.Fail(
            UnsupportedField("modalities", "modalities: only \"text\" is supported"));
      }
    }
  });
  reader.Unsupported("add_special_tokens", "the chat template adds the special tokens");
  reader.Unsupported("echo", "use /v1/completions");
  reader.Unsupported("web_search_options", "web search is not available");
}

Parsed<ChatRequest> ReadChat(const Json& body, const OrderedFields& fields,
                             const ParseContext& context) {
  ChatRequest request;
  FieldReader reader(body);
  SamplingParams& params = request.options.params;
  ReadEnvelope(reader, request.options);
  ReadTools(reader, fields, request.tools);
  ReadConversation(reader, fields, request.tools.choice != ToolUse::Choice::kNone,
                   request.conversation);
  ReadTemplate(reader, context, request.conversation);
  IgnoreUnknownInConversation(reader, text::IsTemplateSource(request.conversation.chat_template)
                                          ? request.conversation.chat_template
                                          : context.chat_template);
  ReadSampling(reader, context.defaults, request.options);
  ReadChatLengths(reader, params);
  ReadChatLogprobs(reader, params);
  ReadChatConstraint(reader, fields, request);
  // The template gets the tools, but the model's calls stay text.
  if (!request.tools.tools.empty() && request.tools.choice == ToolUse::Choice::kAuto &&
      !context.finds_tool_calls) {
    reader.AddIgnored("tools");
  }
  bool show_reasoning = true;
  reader.Bool("include_reasoning", show_reasoning);
  request.hide_reasoning = !show_reasoning;
  reader.Int("thinking_token_budget", 0, std::numeric_limits<int32_t>::max(),
             request.thinking_budget);
  RefuseUnsupportedInChat(reader);
  RefuseUnsupported(reader);
  IgnoreKnownFields(reader);
  IgnoreKnownChatFields(reader);
  if (params.prompt_logprobs && request.options.stream) {
    reader.Fail("prompt_logprobs", "prompt_logprobs is not available with \"stream\": true");
  }
  CheckSampling(reader, context.vocab_size, request.options);
  if (reader.error()) return *reader.error();
  request.options.ignored = IgnoredHeaderValue(reader);
  return request;
}

}  // namespace

Parsed<ChatRequest> ParseChatRequest(std::string_view body, const ParseContext& context) {
  const Parsed<Json> parsed = ParseBody(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  return ReadChat(std::get<Json>(parsed), FieldsOf(body), context);
}

Parsed<ChatRequest> ParseChatObject(const OrderedJson& body, const ParseContext& context) {
  const Json json(body);
  if (auto error = CheckParts(json)) return *std::move(error);
  return ReadChat(json, FieldsOf(body), context);
}

}  // namespace millrace::serve
