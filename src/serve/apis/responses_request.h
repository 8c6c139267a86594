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
Parsed<ResponsesOptions> ReadResponsesOptions(std::string_view body);

struct ResponsesContext {
  std::string id;                        // of the response: kResponseIdBegin and more
  const OrderedJson* earlier = nullptr;  // items of the responses before, in order; null: none
  std::optional<int64_t> seed;           // for a request that has none
};
Parsed<TranslatedRequest> ChatOfResponses(std::string_view body, const ResponsesContext& context);

// The items of the request's input, each with a type and an id. `id` is the response's.
// REQUIRES: ChatOfResponses took the body.
OrderedJson InputItems(std::string_view body, const std::string& id);
// The fields of a request that every response object repeats. REQUIRES: as InputItems.
Json EchoedInResponses(std::string_view body);

}  // namespace millrace::serve
