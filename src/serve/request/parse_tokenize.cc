#include "serve/http/limits.h"
#include "serve/request/ignored_fields.h"
#include "serve/request/parse_common.h"
#include "serve/request/request.h"

namespace millrace::serve {

Parsed<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const ParseContext& context) {
  Parsed<Json> parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  TokenizeRequest request;
  FieldReader reader(std::get<Json>(parsed));
  reader.String("model", kNameBytesMax, request.model);
  if (reader.Find("messages") != nullptr) {
    Conversation conversation;
    ToolUse tools;
    ReadTools(reader, FieldsOf(body), tools);
    ReadConversation(reader, FieldsOf(body), tools.choice != ToolUse::Choice::kNone, conversation);
    ReadTemplate(reader, context, conversation);
    IgnoreUnknownInConversation(reader, context.chat_template);
    request.input = std::move(conversation);
  } else {
    std::string prompt;
    const Json* given = reader.Find("prompt");
    if (given == nullptr) reader.Fail("prompt", "prompt or messages is required");
    reader.String("prompt", body.size(), prompt);
    request.input = std::move(prompt);
  }
  reader.Bool("add_special_tokens", request.add_special_tokens);
  request.parse_special = context.parse_special_default;
  reader.Bool("parse_special", request.parse_special);
  reader.Bool("return_token_strs", request.return_token_strs);
  if (reader.error()) return *reader.error();
  request.ignored = IgnoredHeaderValue(reader);
  return request;
}

Parsed<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                 const ParseContext& context) {
  Parsed<Json> parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  DetokenizeRequest request;
  FieldReader reader(std::get<Json>(parsed));
  reader.String("model", kNameBytesMax, request.model);
  if (reader.Find("tokens") == nullptr) reader.Fail("tokens", "tokens is required");
  reader.Array("tokens", [&](const Json& list) {
    request.tokens = ReadTokenIds(reader, "tokens", "tokens", list, context.vocab_size);
  });
  if (reader.error()) return *reader.error();
  request.ignored = IgnoredHeaderValue(reader);
  return request;
}

}  // namespace millrace::serve
