#include "serve/http/api_error.h"

#include <fmt/format.h>

#include "base/log.h"

namespace millrace::serve {
namespace {

constexpr int kRetryQueueFullS = 1;
constexpr int kRetryUnreadyS = 5;
constexpr int kUnauthorized = 401;

bool RetryIsUseless(int status) {
  return (status >= 400 && status < 500 && status != 408 && status != 409 && status != 429) ||
         status == 501;
}

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

ApiError BadField(std::string param, std::string message) {
  return {.message = std::move(message), .param = std::move(param)};
}

ApiError UnsupportedField(std::string param, std::string message) {
  return {
      .message = std::move(message), .param = std::move(param), .code = "unsupported_parameter"};
}

ApiError ModelNotFound(const std::string& model) {
  return {.status = 404,
          .message = fmt::format("The model '{}' is not served here; GET /v1/models lists the "
                                 "served models.",
                                 Printable(model, 128)),
          .param = "model",
          .code = "model_not_found"};
}

ApiError ContextTooLong(int max_model_len, int prompt_tokens, std::optional<int> max_tokens) {
  std::string message;
  if (max_tokens) {
    message = fmt::format(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in "
        "the prompt, {} in the completion). Please reduce the length of the prompt or completion.",
        max_model_len, static_cast<int64_t>(prompt_tokens) + *max_tokens, prompt_tokens,
        *max_tokens);
  } else {
    message = fmt::format(
        "This model's maximum context length is {} tokens. However, your prompt has {} tokens, "
        "which leaves no room for a completion. Please reduce the length of the prompt.",
        max_model_len, prompt_tokens);
  }
  return {.message = std::move(message), .code = "context_length_exceeded"};
}

ApiError ContextTooLongText(int max_model_len, std::string_view what, std::string param) {
  return {.message = fmt::format("This model's maximum context length is {} tokens. However, {}. "
                                 "Please reduce the length of the prompt.",
                                 max_model_len, what),
          .param = std::move(param),
          .code = "context_length_exceeded"};
}

ApiError Unready(std::string message) {
  return {.status = 503,
          .message = std::move(message),
          .type = "service_unavailable_error",
          .code = "service_unavailable",
          .retry_after_s = kRetryUnreadyS};
}

ApiError EmbeddingsOnly() {
  return {.status = 400,
          .message =
              "This model makes embeddings only: its folder has no vocabulary projection, so it "
              "generates no text. Use POST /v1/embeddings.",
          .code = "model_cannot_generate"};
}

ApiError Draining() { return Unready("The server is shutting down and takes no new requests."); }

ApiError FromStatus(const Status& status, std::string param) {
  ApiError error;
  error.message = status.message();
  error.param = std::move(param);
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition: break;
    case StatusCode::kUnauthenticated:
      error.status = 401;
      error.code = "invalid_api_key";
      break;
    case StatusCode::kNotFound: error.status = 404; break;
    case StatusCode::kTooLarge: error.status = 413; break;
    case StatusCode::kUnimplemented: error.code = "unsupported_parameter"; break;
    case StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "rate_limit_exceeded";
      error.retry_after_s = kRetryQueueFullS;
      break;
    case StatusCode::kUnavailable: return Unready(status.message());
    case StatusCode::kDeadlineExceeded:
      error.status = 504;
      error.type = "server_error";
      break;
    default:
      MR_LOG(error, "a request failed: {}", status.ToString());
      error.status = 500;
      error.type = "server_error";
      error.message =
          "The server failed to process this request; see the server's log for the reason.";
      error.param.clear();
  }
  return error;
}

Json ErrorBody(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", OrNull(error.param)},
            {"code", OrNull(error.code)}}}};
}

net::HttpResponse ErrorResponse(const ApiError& error) {
  net::HttpResponse response = JsonResponse(ErrorBody(error), error.status);
  if (error.retry_after_s) {
    response.headers.emplace_back("retry-after", std::to_string(*error.retry_after_s));
  }
  if (error.status == kUnauthorized) response.headers.emplace_back("www-authenticate", "Bearer");
  if (RetryIsUseless(error.status)) response.headers.emplace_back("x-should-retry", "false");
  return response;
}

net::HttpResponse JsonResponse(const Json& body, int status) {
  return {
      .status = status, .headers = {{"content-type", "application/json"}}, .body = DumpJson(body)};
}

net::HttpResponse EventStreamHead(const char* type) {
  return {.status = 200,
          .headers = {
              {"content-type", type}, {"cache-control", "no-cache"}, {"x-accel-buffering", "no"}}};
}

}  // namespace millrace::serve
