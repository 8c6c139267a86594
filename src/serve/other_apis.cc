#include "serve/other_apis.h"

#include <utility>

#include "serve/ignored_fields.h"
#include "serve/limits.h"
#include "serve/messages_api.h"
#include "serve/parse_common.h"
#include "serve/service_impl.h"

namespace millrace::serve {

void OtherApis::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, std::function<void(Call)> handler) {
    table.Add({method, path, Access::kKeyed, std::move(handler), PathKind::kExact});
  };
  add("POST", "/v1/messages", [this](Call call) { Messages(std::move(call)); });
  add("POST", "/v1/messages/count_tokens",
      [this](Call call) { CountMessageTokens(std::move(call)); });
  add("POST", "/api/chat", [this](Call call) { Ollama(std::move(call), OllamaRoute::kChat); });
  add("POST", "/api/generate",
      [this](Call call) { Ollama(std::move(call), OllamaRoute::kGenerate); });
  add("POST", "/api/embed",
      [this](Call call) { OllamaEmbed(std::move(call), OllamaEmbedRoute::kEmbed); });
  add("POST", "/api/embeddings",
      [this](Call call) { OllamaEmbed(std::move(call), OllamaEmbedRoute::kEmbeddings); });
  add("GET", "/api/tags", [this](Call call) { OllamaTags(std::move(call)); });
  add("POST", "/api/show", [this](Call call) { OllamaShow(std::move(call)); });
}

void OtherApis::Answer(Call call, Parsed<TranslatedRequest> translated,
                       const std::function<void(Call)>& route,
                       const std::function<ReplyMaker>& reply_for) {
  auto* const request = std::get_if<TranslatedRequest>(&translated);
  call.reply = reply_for(call.reply, request != nullptr ? request->ignored : "");
  if (request == nullptr) return call.reply->Send(ErrorResponse(std::get<ApiError>(translated)));
  call.request.body = std::move(request->chat);
  route(std::move(call));
}

void OtherApis::Messages(Call call) {
  auto translated = ChatOfMessages(call.request.body, false);
  Answer(std::move(call), std::move(translated), routes_.chat,
         [](auto inner, const std::string& ignored) {
           return std::make_shared<MessagesReply>(std::move(inner), ignored);
         });
}

void OtherApis::CountMessageTokens(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  const auto refuse = [&call](const ApiError& error) {
    call.reply->Send(
        JsonResponse(MessagesError(ErrorBody(error)["error"], error.status), error.status));
  };
  const Parsed<TranslatedRequest> translated = ChatOfMessages(call.request.body, true);
  if (const auto* error = std::get_if<ApiError>(&translated)) return refuse(*error);
  Parsed<ChatRequest> parsed =
      ParseChatRequest(std::get<TranslatedRequest>(translated).chat, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  const ChatRequest& request = std::get<ChatRequest>(parsed);
  if (!routes_.served_name(request.options.model))
    return refuse(ModelNotFound(request.options.model));
  Parsed<std::vector<TokenId>> tokens = EncodeConversation(loaded->model, request.conversation);
  if (auto* error = std::get_if<ApiError>(&tokens)) return refuse(*error);
  call.reply->Send(JsonResponse({{"input_tokens", std::get<std::vector<TokenId>>(tokens).size()}}));
}

void OtherApis::Ollama(Call call, OllamaRoute route) {
  auto translated = ChatOfOllama(call.request.body, route);
  Answer(std::move(call), std::move(translated), routes_.chat,
         [&](auto inner, const std::string& ignored) {
           return std::make_shared<OllamaReply>(std::move(inner), ignored, route);
         });
}

void OtherApis::OllamaEmbed(Call call, OllamaEmbedRoute route) {
  auto translated = EmbeddingOfOllama(call.request.body, route);
  Answer(std::move(call), std::move(translated), routes_.embeddings,
         [&](auto inner, const std::string& ignored) {
           return std::make_shared<OllamaEmbedReply>(std::move(inner), ignored, route);
         });
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
  const auto refuse = [&call](const std::string& message, int status) {
    call.reply->Send(JsonResponse({{"error", message}}, status));
  };
  const Parsed<Json> body = ParseBody(call.request.body);
  if (const auto* error = std::get_if<ApiError>(&body))
    return refuse(error->message, error->status);
  std::string asked;
  FieldReader reader(std::get<Json>(body));
  reader.String("model", kNameBytesMax, asked);
  if (reader.error()) return refuse(reader.error()->message, reader.error()->status);
  const auto name = routes_.served_name(WithoutLatest(asked));
  if (!name) return refuse(ModelNotFound(asked).message, 404);
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
