// Bodies of the HTTP API: the first byte selects the route, the rest is the body. An accepted
// request must be inside every range and fit the model; a rejection must state the reason.
#include "base/check.h"
#include "serve/apis/messages_api.h"
#include "serve/apis/ollama_api.h"
#include "serve/apis/responses_request.h"
#include "serve/request/parse_common.h"
#include "serve/request/request.h"

namespace {

using millrace::TokenId;
namespace serve = millrace::serve;

constexpr int kVocab = 300;
constexpr int kContext = 128;

void CheckTokens(const std::vector<TokenId>& tokens) {
  for (TokenId token : tokens) MR_CHECK(token >= 0 && token < kVocab) << token;
}

void CheckOptions(const serve::GenerationOptions& options, const serve::ParseContext& context) {
  const millrace::Status valid = millrace::Validate(options.params, kVocab);
  MR_CHECK(valid.ok()) << valid.ToString();
  const auto fitted = serve::FitLengths(options, context, {1, kContext / 2});
  if (const auto* lengths = std::get_if<serve::FittedLengths>(&fitted)) {
    MR_CHECK(lengths->max_tokens[1] <= kContext / 2);
  }
}

void CheckVectors(const auto& request) {
  MR_CHECK(!request.inputs.empty());
  for (const serve::VectorInput& input : request.inputs) {
    MR_CHECK(!input.where.empty());
    if (const auto* tokens = std::get_if<1>(&input.prompt)) CheckTokens(*tokens);
  }
  const auto& tokens_max = request.options.truncation.tokens_max;
  if (tokens_max) MR_CHECK(*tokens_max >= 1 && *tokens_max <= kContext);
}

// What another API's request became is read as any other chat request.
void CheckChat(const serve::TranslatedRequest& request) {
  MR_CHECK(request.chat.is_object());
  const serve::ParseContext context{.vocab_size = kVocab, .max_model_len = kContext};
  const auto parsed = serve::ParseChatObject(request.chat, context);
  if (const auto* error = std::get_if<serve::ApiError>(&parsed)) {
    MR_CHECK(!request.names.Of(*error).message.empty());
  }
}

void CheckOllama(const serve::OllamaRequest& request) {
  if (!request.load) CheckChat(request.chat);
}

serve::Parsed<serve::ResponsesRequest> ReadResponses(std::string_view body) {
  const auto json = serve::ParseBody(body);
  if (const auto* error = std::get_if<serve::ApiError>(&json)) return *error;
  return serve::ReadResponsesRequest(std::get<millrace::Json>(json), body, {.id = "resp_1"});
}

template <typename T>
serve::Parsed<T> ReadVectors(std::string_view body, const serve::ParseContext& context,
                             serve::Parsed<T> (*read)(const millrace::Json&,
                                                      const serve::ParseContext&)) {
  const auto json = serve::ParseBody(body);
  if (const auto* error = std::get_if<serve::ApiError>(&json)) return *error;
  return read(std::get<millrace::Json>(json), context);
}

template <typename T, typename Check>
void Try(serve::Parsed<T> parsed, Check check) {
  if (const auto* error = std::get_if<serve::ApiError>(&parsed)) {
    MR_CHECK(error->status == 400 && !error->message.empty());
    serve::ErrorResponse(*error);
  } else {
    check(std::get<T>(parsed));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const serve::ParseContext context{
      .vocab_size = kVocab, .max_model_len = kContext, .embedding_size = 64};
  switch (data[0] % 16) {
    case 0:
      Try(serve::ParseCompletionRequest(body, context),
          [&](const serve::CompletionRequest& request) {
            CheckOptions(request.options, context);
            MR_CHECK(!request.prompts.empty());
            for (const serve::Prompt& prompt : request.prompts) {
              if (const auto* tokens = std::get_if<1>(&prompt)) CheckTokens(*tokens);
            }
          });
      break;
    case 1:
      Try(serve::ParseChatRequest(body, context), [&](const serve::ChatRequest& request) {
        CheckOptions(request.options, context);
        const auto messages = millrace::ParseJson(request.conversation.messages, 256);
        MR_CHECK(messages.ok() && messages->is_array() && !messages->empty());
        for (const millrace::Json& message : *messages) {
          const millrace::Json content = message.value("content", millrace::Json());
          MR_CHECK(content.is_string() || content.is_array() || content.is_null());
        }
      });
      break;
    case 2:
      Try(serve::ParseTokenizeRequest(body, context), [](const serve::TokenizeRequest&) {});
      break;
    case 3:
      Try(serve::ParseDetokenizeRequest(body, context),
          [](const serve::DetokenizeRequest& request) { CheckTokens(request.tokens); });
      break;
    case 4:
      Try(serve::ChatOfMessages(body, {.count_only = data[0] >= 128, .reasons = data[0] % 32 < 16}),
          CheckChat);
      break;
    case 5:
      Try(ReadResponses(body), [](const serve::ResponsesRequest& read) { CheckChat(read.made); });
      break;
    case 6:
      Try(serve::ReadOllamaRequest(body, {.route = serve::OllamaRoute::kChat}), CheckOllama);
      break;
    case 7:
      Try(serve::ReadOllamaRequest(body, {.route = serve::OllamaRoute::kGenerate}), CheckOllama);
      break;
    case 8:
      Try(ReadVectors(body, context, serve::ParseEmbeddingRequest),
          [](const auto& r) { CheckVectors(r); });
      break;
    case 9:
      Try(ReadVectors(body, context, serve::ParseScoreRequest),
          [](const auto& r) { CheckVectors(r); });
      break;
    default:
      Try(ReadVectors(body, context, serve::ParseRerankRequest),
          [](const auto& r) { CheckVectors(r); });
  }
  return 0;
}
