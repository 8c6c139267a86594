#include "serve/other_apis.h"

#include <utility>

#include "serve/apis/messages_api.h"
#include "serve/apis/messages_writer.h"
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

bool ModelReasons(const ChatRoutes& routes) {
  const std::shared_ptr<ModelContext> loaded = routes.loaded_now();
  return !loaded || loaded->model.reasoning_format != nullptr;
}

void OtherApis::Messages(Call call) {
  auto translated = ChatOfMessages(call.request.body, {.reasons = ModelReasons(routes_)});
  if (const auto* error = std::get_if<ApiError>(&translated)) {
    return call.reply->Send(MessagesWriter().Refusal(*error));
  }
  auto& [chat, ignored, names] = std::get<TranslatedRequest>(translated);
  call.clamps_max_tokens = true;
  routes_.chat(std::move(call), chat,
               std::make_shared<MessagesWriter>(std::move(names), std::move(ignored)));
}

void OtherApis::CountMessageTokens(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  FieldNames names;
  const auto refuse = [&](const ApiError& error) {
    net::HttpResponse response = JsonResponse(nullptr, error.status);
    MessagesWriter(names).Refuse(error, response);
    call.reply->Send(std::move(response));
  };
  const Parsed<TranslatedRequest> translated =
      ChatOfMessages(call.request.body, {.count_only = true, .reasons = ModelReasons(routes_)});
  if (const auto* error = std::get_if<ApiError>(&translated)) return refuse(*error);
  const auto& made = std::get<TranslatedRequest>(translated);
  names = made.names;
  const Parsed<ChatRequest> parsed = ParseChatObject(made.chat, loaded->context);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  const ChatRequest& request = std::get<ChatRequest>(parsed);
  if (!routes_.served_name(request.options.model))
    return refuse(ModelNotFound(request.options.model));
  const Parsed<std::vector<TokenId>> tokens = EncodeConversation(
      loaded->model, request.conversation, {.client = call.reply.get(), .shown = true});
  if (const auto* error = std::get_if<ApiError>(&tokens)) return refuse(*error);
  net::HttpResponse response =
      JsonResponse({{"input_tokens", std::get<std::vector<TokenId>>(tokens).size()}});
  MessagesWriter(names, made.ignored).AddIgnored(response, request.options.ignored);
  call.reply->Send(std::move(response));
}

}  // namespace millrace::serve
