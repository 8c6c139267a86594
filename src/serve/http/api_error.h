// ApiError: an error as an OpenAI client sees it, {"error": {message, type, param, code}} with its
// HTTP status. Values; any thread.
//
// Texts name the field, the value and the limit. They reveal no internals of the server: no paths,
// addresses or stacks. Internal causes go to the log with the request's id.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "net/http/http.h"

namespace millrace::serve {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;                 // empty: null
  std::string code;                  // empty: null
  std::optional<int> retry_after_s;  // sent as Retry-After
};

// 400: the client must change the field `param`.
ApiError BadField(std::string param, std::string message);
ApiError UnsupportedField(std::string param, std::string message);
// 404 with code model_not_found.
ApiError ModelNotFound(const std::string& model);
// 400 with code context_length_exceeded and OpenAI's wording, which clients parse.
ApiError ContextTooLong(int max_model_len, int prompt_tokens, std::optional<int> max_tokens);
// The same, for a text that is too long to tokenize as a whole. `what` is wrong: "your prompt has
// at least 9000 tokens".
ApiError ContextTooLongText(int max_model_len, std::string_view what, std::string param);
// 503 with Retry-After.
ApiError Unready(std::string message);
ApiError Draining();
// The model is one without a vocabulary projection.
ApiError EmbeddingsOnly();
// The HTTP form of an internal error. kInternal, kDataLoss and other codes that are not the
// client's concern get a generic text.
ApiError FromStatus(const Status& status, std::string param = "");

Json ErrorBody(const ApiError& error);
// Adds Retry-After if the error has one, `WWW-Authenticate: Bearer` to a 401, and
// `x-should-retry: false` if the same request would fail again.
net::HttpResponse ErrorResponse(const ApiError& error);

net::HttpResponse JsonResponse(const Json& body, int status = 200);
inline constexpr char kEventStreamType[] = "text/event-stream; charset=utf-8";
net::HttpResponse EventStreamHead(const char* type = kEventStreamType);

}  // namespace millrace::serve
