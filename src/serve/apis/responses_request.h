// Requests of OpenAI's Responses API as chat requests. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serve/apis/chat_translation.h"

namespace millrace::serve {

inline constexpr std::string_view kResponseIdBegin = "resp_";

// What decides how a request is answered. The rest is for the chat route.
struct ResponsesOptions {
  std::string model;
  std::string previous;  // id of the response that this one continues; empty: none
  bool store = true;
  bool background = false;  // answered at once; its response is fetched later
  bool stream = false;
};
Parsed<ResponsesOptions> ReadResponsesOptions(const Json& body);

struct ResponsesContext {
  std::string id;                        // of the response: kResponseIdBegin and more
  const OrderedJson* earlier = nullptr;  // items of the responses before, in order; null: none
  std::optional<int64_t> seed;           // for a request that has none
};
struct ResponsesRequest {
  TranslatedRequest made;
  OrderedJson input;  // its items, each with a type and an id
  Json echoed;        // the fields that every response object repeats
};
// `json` is `body`, parsed.
Parsed<ResponsesRequest> ReadResponsesRequest(const Json& json, std::string_view body,
                                              const ResponsesContext& context);

}  // namespace millrace::serve
