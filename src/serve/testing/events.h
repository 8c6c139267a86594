// What a client reads of a stream's bytes, for tests. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace millrace::serve {

// The complete events in the bytes that a client received. An incomplete last one is left out.
std::vector<std::string> Events(const std::string& body);
std::vector<Json> ParseEvents(const std::string& body, bool expect_done = true);

// The text of the choice `index` in the events of a stream.
std::string JoinedText(const std::vector<Json>& events, int index = 0);

// The events of the APIs whose events have types; each data repeats its type.
struct TypedEvent {
  std::string type;
  Json data;
};
std::vector<TypedEvent> TypedEvents(const std::string& body);

}  // namespace millrace::serve
