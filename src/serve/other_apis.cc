#include "serve/other_apis.h"

#include <utility>

#include "serve/apis/messages_api.h"
#include "serve/apis/messages_reply.h"
#include "serve/request/ignored_fields.h"
#include "serve/request/parse_common.h"
#include "serve/service_impl.h"

namespace millrace::serve {

void OtherApis::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, std::function<void(Call)> handler) {
    table.Add({method, path, Access::kKeyed, std::move(handler), PathKind::kExact});
  };
  add("POST", "/v1/messages", [this](Call call) { Messages(std::move(call)); });
  add("POST", "/v1/messages/count_tokens",
      [this](Call call) { CountMessageTokens(std::move(call)); });
}

void AnswerByRoute(Call call, Parsed<TranslatedRequest> translated,
                   const std::function<void(Call)>& route,
                   const std::function<ReplyMaker>& reply_for) {
  auto* const request = std::get_if<TranslatedRequest>(&translated);
  call.reply = reply_for(call.reply, request != nullptr ? *request : TranslatedRequest());
  if (request == nullptr) return call.reply->Send(ErrorResponse(std::get<ApiError>(translated)));
  call.request.body = std::move(request->chat);
  route(std::move(call));
}

bool ModelReasons(const ChatRoutes& routes) {
  const std::shared_ptr<ModelContext> loaded = routes.loaded_now();
  return !loaded || loaded->model.reasoning_format != nullptr;
}

void OtherApis::Messages(Call call) {
  auto translated = ChatOfMessages(call.request.body, {.reasons = ModelReasons(routes_)});
  call.clamps_max_tokens = true;
  AnswerByRoute(std::move(call), std::move(translated), routes_.chat,
                [](auto inner, const TranslatedRequest& request) {
                  return std::make_shared<MessagesReply>(std::move(inner), request.ignored,
                                                         request.names);
                });
}

void OtherApis::CountMessageTokens(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  const auto refuse = [&call](const ApiError& error) {
    call.reply->Send(
        JsonResponse(MessagesError(ErrorBody(error)["error"], error.status), error.status));
  };
  const Parsed<TranslatedRequest> translated =
      ChatOfMessages(call.request.body, {.count_only = true, .reasons = ModelReasons(routes_)});
  if (const auto* error = std::get_if<ApiError>(&translated)) return refuse(*error);
  const auto& made = std::get<TranslatedRequest>(translated);
  const FieldNames& names = made.names;
  Parsed<ChatRequest> parsed = ParseChatRequest(made.chat, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(names.Of(*error));
  const ChatRequest& request = std::get<ChatRequest>(parsed);
  if (!routes_.served_name(request.options.model))
    return refuse(ModelNotFound(request.options.model));
  Parsed<std::vector<TokenId>> tokens = EncodeConversation(
      loaded->model, request.conversation, {.client = call.reply.get(), .shown = true});
  if (auto* error = std::get_if<ApiError>(&tokens)) return refuse(names.Of(*error));
  net::HttpResponse response =
      JsonResponse({{"input_tokens", std::get<std::vector<TokenId>>(tokens).size()}});
  const std::string all = JoinIgnored(request.options.ignored, made.ignored,
                                      [&](std::string_view name) { return names.Of(name); });
  if (!all.empty()) response.headers.emplace_back(kIgnoredHeader, all);
  call.reply->Send(std::move(response));
}

}  // namespace millrace::serve
