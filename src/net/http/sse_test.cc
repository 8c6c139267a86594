#include "net/http/sse.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace millrace::net {
namespace {

using Events = std::vector<std::pair<std::string, std::string>>;

// Feeds `stream` in pieces of at most `piece_bytes_max`, whose sizes `rng` chooses.
Events Parse(std::string_view stream, size_t piece_bytes_max, Rng rng = Rng(1)) {
  Events events;
  SseParser parser(
      [&](std::string_view type, std::string_view data) { events.emplace_back(type, data); });
  while (!stream.empty()) {
    const auto n = static_cast<size_t>(rng.Between(1, static_cast<int64_t>(piece_bytes_max)));
    EXPECT_TRUE(parser.Feed(stream.substr(0, n)).ok());
    stream.remove_prefix(std::min(n, stream.size()));
  }
  return events;
}

TEST(Sse, FollowsTheStandard) {
  EXPECT_EQ(Parse("data: a\n\ndata:b\r\n\r\ndata:  c\r\r", 100),
            (Events{{"message", "a"}, {"message", "b"}, {"message", " c"}}));
  EXPECT_EQ(Parse("data: 1\ndata\ndata: 2\n\n", 100), (Events{{"message", "1\n\n2"}}));
  EXPECT_EQ(Parse(": comment\nid: 7\nretry: 1\nevent: x\ndata: y\n\n", 100), (Events{{"x", "y"}}));
  EXPECT_EQ(Parse("event: lost\n\ndata: y\n\n", 100), (Events{{"message", "y"}}));
  EXPECT_EQ(Parse("\xef\xbb\xbf"
                  "data: y\n\ndata: cut short\n",
                  100),
            (Events{{"message", "y"}}));
  EXPECT_EQ(Parse("data\n\n", 100), (Events{{"message", ""}}));
}

TEST(Sse, RemembersTheLastEventId) {
  std::vector<std::string> ids;
  SseParser* reading = nullptr;
  SseParser parser(
      [&](std::string_view, std::string_view) { ids.push_back(reading->last_event_id()); });
  reading = &parser;
  ASSERT_TRUE(parser
                  .Feed("data: a\n\nid: r:1\ndata: b\n\ndata: c\n\nid: r:2\ndata: d\n\n"
                        "id: r:3\ndata: cut sh")
                  .ok());
  EXPECT_EQ(ids, (std::vector<std::string>{"", "r:1", "r:1", "r:2"}));
  EXPECT_EQ(parser.last_event_id(), "r:2") << "the third event is not whole";
}

TEST(Sse, RoundTrips) {
  EXPECT_EQ(SseEvent("{}"), "data: {}\n\n");
  EXPECT_EQ(SseEvent("a\nb"), "data: a\ndata: b\n\n");
  EXPECT_EQ(Parse(SseEvent("x\r\ny\rz\n") + std::string(kSsePing) + std::string(kSseDone), 100),
            (Events{{"message", "x\ny\nz\n"}, {"message", "[DONE]"}}));
}

// Any division into pieces gives the same events as the whole.
TEST(Sse, PiecesDoNotMatter) {
  const std::string_view alphabet[] = {"data:", "event:", ":",    " ",         "\r",          "\n",
                                       "\r\n",  "x",      "\n\n", "data: y\n", "\xef\xbb\xbf"};
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    std::string stream;
    for (int64_t n = rng.Between(1, 40); n > 0; --n) {
      stream += alphabet[rng.Between(0, std::size(alphabet) - 1)];
    }
    EXPECT_EQ(Parse(stream, 3, Rng(seed)), Parse(stream, 1000, Rng(seed))) << seed;
    EXPECT_EQ(Parse(stream, 1), Parse(stream, 1000)) << seed;
  }
}

TEST(Sse, AnEndlessEventIsAnError) {
  SseParser parser([](std::string_view, std::string_view) {}, 100);
  EXPECT_TRUE(parser.Feed("data: " + std::string(90, 'x')).ok());
  EXPECT_EQ(parser.Feed("yyyyyyyyyy").code(), StatusCode::kTooLarge);
  EXPECT_FALSE(parser.Feed("\n\n").ok());
}

}  // namespace
}  // namespace millrace::net
