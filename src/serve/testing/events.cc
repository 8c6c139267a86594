#include "serve/testing/events.h"

#include <gtest/gtest.h>

#include "net/http/sse.h"

namespace millrace::serve {

std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> events;
  for (size_t begin = 0, end; (end = body.find("\n\n", begin)) != std::string::npos;
       begin = end + 2) {
    events.push_back(body.substr(begin, end + 2 - begin));
  }
  return events;
}

std::vector<Json> ParseEvents(const std::string& body, bool expect_done) {
  std::vector<Json> events;
  size_t begin = 0;
  bool done = false;
  while (begin < body.size()) {
    const size_t end = body.find("\n\n", begin);
    EXPECT_NE(end, std::string::npos) << "an event ends in an empty line";
    if (end == std::string::npos) break;
    const std::string event = body.substr(begin, end - begin);
    begin = end + 2;
    EXPECT_EQ(event.rfind("data: ", 0), 0u) << event;
    EXPECT_EQ(event.find('\n'), std::string::npos) << "one line per event";
    EXPECT_FALSE(done) << "[DONE] is last";
    done = event == "data: [DONE]";
    if (done) continue;
    auto parsed = ParseJson(event.substr(6));
    EXPECT_TRUE(parsed.ok()) << event;
    if (parsed.ok()) events.push_back(*parsed);
  }
  EXPECT_EQ(done, expect_done);
  return events;
}

std::string JoinedText(const std::vector<Json>& events, int index) {
  std::string text;
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      text += choice.contains("delta") ? choice["delta"].value("content", "")
                                       : choice["text"].get<std::string>();
    }
  }
  return text;
}

std::vector<TypedEvent> TypedEvents(const std::string& body) {
  std::vector<TypedEvent> events;
  net::SseParser parser([&](std::string_view type, std::string_view data) {
    events.push_back({std::string(type), Json::parse(data)});
  });
  EXPECT_TRUE(parser.Feed(body).ok());
  for (const TypedEvent& event : events) EXPECT_EQ(event.data["type"], event.type);
  return events;
}

}  // namespace millrace::serve
