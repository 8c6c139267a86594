#include "serve/text_routes.h"

#include <fmt/format.h>

#include <utility>

#include "serve/http/limits.h"
#include "serve/request/ignored_fields.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

net::HttpResponse WithIgnored(net::HttpResponse response, const std::string& ignored) {
  if (!ignored.empty()) response.headers.emplace_back(kIgnoredHeader, ignored);
  return response;
}

}  // namespace

void TextRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, void (TextRoutes::*member)(Call)) {
    table.Add({.method = method, .path = path, .handler = [this, member](Call call) {
                 (this->*member)(std::move(call));
               }});
  };
  add("POST", "/tokenize", &TextRoutes::Tokenize);
  add("POST", "/detokenize", &TextRoutes::Detokenize);
  add("POST", "/apply-template", &TextRoutes::ApplyTemplate);
  add("GET", "/tokenizer_info", &TextRoutes::TokenizerInfo);
}

void TextRoutes::Tokenize(Call call) {
  std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  Parsed<TokenizeRequest> parsed = ParseTokenizeRequest(call.request.body, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  const TokenizeRequest& request = std::get<TokenizeRequest>(parsed);
  if (!routes_.served_name(request.model)) return refuse(ModelNotFound(request.model));
  const ServedModel& model = loaded->model;
  const text::EncodeOptions options{.add_special_tokens = request.add_special_tokens,
                                    .parse_special = request.parse_special};
  const EncodeUse use{.client = call.reply.get(), .shown = true};
  const auto* text = std::get_if<std::string>(&request.input);
  std::vector<TokenId> tokens;
  if (text != nullptr && text->empty()) {  // it may have no tokens but those around a text
    Result<std::vector<TokenId>> around = model.tokenizer->Encode("", options);
    if (!around.ok()) return refuse(FromStatus(around.status(), "prompt"));
    tokens = *std::move(around);
  } else {
    Parsed<std::vector<TokenId>> encoded =
        text != nullptr ? EncodeText(model, *text, options, "prompt", use)
                        : EncodeConversation(model, std::get<Conversation>(request.input), use);
    if (auto* error = std::get_if<ApiError>(&encoded)) return refuse(*error);
    tokens = std::move(std::get<std::vector<TokenId>>(encoded));
  }
  Json body = {{"count", tokens.size()},
               {"max_model_len", model.max_model_len},
               {"tokens", tokens},
               {"token_strs", nullptr}};
  if (request.return_token_strs) {
    Json texts = Json::array();
    for (TokenId token : tokens) texts.push_back(std::string(model.tokenizer->Token(token).raw));
    body["token_strs"] = std::move(texts);
  }
  call.reply->Send(WithIgnored(JsonResponse(body), request.ignored));
}

void TextRoutes::Detokenize(Call call) {
  std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  Parsed<DetokenizeRequest> parsed = ParseDetokenizeRequest(call.request.body, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  const DetokenizeRequest& request = std::get<DetokenizeRequest>(parsed);
  if (!routes_.served_name(request.model)) return refuse(ModelNotFound(request.model));
  size_t bytes = 0;
  for (const TokenId token : request.tokens) {
    bytes += loaded->model.tokenizer->Token(token).text.size();
  }
  if (bytes > kDetokenizedBytesMax) {
    return refuse(BadField("tokens", fmt::format("tokens are a text of {} bytes, the limit is {}",
                                                 bytes, kDetokenizedBytesMax)));
  }
  const std::string prompt = loaded->model.tokenizer->Decode(request.tokens, false);
  call.reply->Send(WithIgnored(JsonResponse({{"prompt", prompt}}), request.ignored));
}

// The prompt of a conversation, as text.
void TextRoutes::ApplyTemplate(Call call) {
  std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  Parsed<TokenizeRequest> parsed = ParseTokenizeRequest(call.request.body, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  const TokenizeRequest& request = std::get<TokenizeRequest>(parsed);
  const auto* conversation = std::get_if<Conversation>(&request.input);
  if (conversation == nullptr) return refuse(BadField("messages", "messages is required"));
  if (!routes_.served_name(request.model)) return refuse(ModelNotFound(request.model));
  Parsed<std::string> rendered = RenderConversation(loaded->model, *conversation);
  if (auto* error = std::get_if<ApiError>(&rendered)) return refuse(*error);
  std::string prompt = std::move(std::get<std::string>(rendered));
  // What keeps special tokens in messages plain text (text/special_guard.h) is not shown.
  for (size_t at = prompt.find(text::kGuardCharacter); at != std::string::npos;
       at = prompt.find(text::kGuardCharacter, at)) {
    prompt.erase(at, text::kGuardCharacter.size());
  }
  call.reply->Send(WithIgnored(JsonResponse({{"prompt", prompt}}), request.ignored));
}

// What evaluation tools read to make prompts as the server does; vLLM's route and names.
void TextRoutes::TokenizerInfo(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  const text::Tokenizer& tokenizer = *loaded->model.tokenizer;
  const auto written = [&](const std::optional<TokenId>& id) {
    return id ? Json(std::string(tokenizer.Token(*id).raw)) : Json();
  };
  const auto& chat = loaded->model.chat_template;
  Json info = {{"bos_token", written(tokenizer.bos())},
               {"eos_token", written(tokenizer.eos())},
               {"eos_token_ids", loaded->model.end_tokens},
               {"unk_token", written(tokenizer.unk())},
               {"pad_token", written(tokenizer.pad())},
               {"chat_template", chat ? Json(chat->source()) : Json()},
               {"vocab_size", tokenizer.vocab_size()},
               {"model_max_length", loaded->model.max_model_len}};
  if (chat && chat->sources().size() > 1) info["chat_templates"] = chat->sources();
  call.reply->Send(JsonResponse(info));
}

}  // namespace millrace::serve
