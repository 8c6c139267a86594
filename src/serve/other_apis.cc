#include "serve/other_apis.h"

#include <utility>

#include "serve/ignored_fields.h"
#include "serve/limits.h"
#include "serve/messages_api.h"
#include "serve/parse_common.h"
#include "serve/responses_api.h"
#include "serve/service_impl.h"

namespace millrace::serve {

void OtherApis::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, std::function<void(Call)> handler) {
    table.Add({method, path, Access::kKeyed, std::move(handler), PathKind::kExact});
  };
  add("POST", "/v1/messages", [this](Call call) { Messages(std::move(call)); });
  add("POST", "/v1/messages/count_tokens",
      [this](Call call) { CountMessageTokens(std::move(call)); });
  add("POST", "/v1/responses", [this](Call call) { Responses(std::move(call)); });
  add("POST", "/api/chat", [this](Call call) { Ollama(std::move(call), OllamaRoute::kChat); });
  add("POST", "/api/generate",
      [this](Call call) { Ollama(std::move(call), OllamaRoute::kGenerate); });
  add("GET", "/api/tags", [this](Call call) { OllamaTags(std::move(call)); });
  add("POST", "/api/show", [this](Call call) { OllamaShow(std::move(call)); });
}

void OtherApis::Messages(Call call) {
  call.reply = std::make_shared<MessagesReply>(call.reply);
  Parsed<std::string> chat = ChatOfMessages(call.request.body, false);
  if (auto* error = std::get_if<ApiError>(&chat)) return call.reply->Send(ErrorResponse(*error));
  call.request.body = std::move(std::get<std::string>(chat));
  routes_.chat(std::move(call));
}

void OtherApis::CountMessageTokens(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  const auto refuse = [&call](const ApiError& error) {
    call.reply->Send(
        JsonResponse(MessagesError(ErrorBody(error)["error"], error.status), error.status));
  };
  Parsed<std::string> chat = ChatOfMessages(call.request.body, true);
  if (auto* error = std::get_if<ApiError>(&chat)) return refuse(*error);
  Parsed<ChatRequest> parsed = ParseChatRequest(std::get<std::string>(chat), loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  const ChatRequest& request = std::get<ChatRequest>(parsed);
  if (!routes_.served_name(request.options.model))
    return refuse(ModelNotFound(request.options.model));
  Parsed<std::vector<TokenId>> tokens = EncodeConversation(loaded->model, request.conversation);
  if (auto* error = std::get_if<ApiError>(&tokens)) return refuse(*error);
  call.reply->Send(JsonResponse({{"input_tokens", std::get<std::vector<TokenId>>(tokens).size()}}));
}

void OtherApis::Responses(Call call) {
  Parsed<ResponsesRequest> parsed = ChatOfResponses(call.request.body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.reply->Send(ErrorResponse(*error));
  ResponsesRequest& request = std::get<ResponsesRequest>(parsed);
  call.reply = std::make_shared<ResponsesReply>(call.reply, std::move(request.echoed),
                                                std::move(request.ignored));
  call.request.body = std::move(request.chat);
  routes_.chat(std::move(call));
}

void OtherApis::Ollama(Call call, OllamaRoute route) {
  Parsed<OllamaRequest> parsed = ChatOfOllama(call.request.body, route);
  const auto* request = std::get_if<OllamaRequest>(&parsed);
  call.reply = std::make_shared<OllamaReply>(call.reply, request ? request->ignored : "", route);
  if (request == nullptr) {
    return call.reply->Send(ErrorResponse(std::get<ApiError>(parsed)));
  }
  call.request.body = request->chat;
  routes_.chat(std::move(call));
}

void OtherApis::OllamaTags(Call call) {
  if (!routes_.loaded(call)) return;
  Json models = Json::array();
  for (const std::string& name : routes_.names) {
    models.push_back({{"name", name}, {"model", name}, {"details", {{"format", "safetensors"}}}});
  }
  call.reply->Send(JsonResponse({{"models", std::move(models)}}));
}

void OtherApis::OllamaShow(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  Parsed<Json> body = ParseBody(call.request.body);
  std::string asked;
  if (const auto* json = std::get_if<Json>(&body)) {
    FieldReader reader(*json);
    reader.String("model", kNameBytesMax, asked);
    if (reader.error()) return call.reply->Send(ErrorResponse(*reader.error()));
  }
  const auto name = routes_.served_name(WithoutLatest(asked));
  if (!name) return call.reply->Send(JsonResponse({{"error", "model not found"}}, 404));
  const ServedModel& model = loaded->model;
  Json capabilities = {"completion"};
  if (model.tool_format != nullptr) capabilities.push_back("tools");
  if (model.reasoning_format != nullptr) capabilities.push_back("thinking");
  call.reply->Send(JsonResponse(
      {{"details", {{"format", "safetensors"}}},
       {"model_info", {{"general.basename", *name}, {"context_length", model.max_model_len}}},
       {"capabilities", std::move(capabilities)}}));
}

}  // namespace millrace::serve
