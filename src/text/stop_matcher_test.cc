#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"

namespace millrace::text {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> stop;
  bool operator==(const Outcome&) const = default;
};

// The definition: for every end, in order, the longest stop string that ends there.
Outcome Oracle(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (stops[i].empty() || !std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (!best.has_value() || stops[i].size() > stops[*best].size()) best = i;
    }
    if (best.has_value()) return {text.substr(0, include ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

// The number of bytes that must be held back: the longest end of `text` that is a proper prefix of
// a stop string.
size_t OracleHeld(const std::string& text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) held = std::max(held, n);
    }
  }
  return held;
}

std::vector<std::string> RandomChars(Rng& rng, int64_t count_max) {
  static const std::vector<std::string> kAlphabet = {"a", "b", "é", "è", "日"};
  std::vector<std::string> chars(rng.Between(0, count_max));
  for (std::string& c : chars) c = kAlphabet[rng.Between(0, kAlphabet.size() - 1)];
  return chars;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

TEST(StopMatcher, AgreesWithTheDefinitionForEverySplit) {
  Rng rng(7);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops(rng.Between(0, 4));
    for (std::string& stop : stops) stop = Join(RandomChars(rng, 5));
    const std::vector<std::string> chars = RandomChars(rng, 24);
    const bool include = rng.Between(0, 1) == 1;
    StopMatcher matcher(stops, include);
    Outcome got;
    std::string seen;
    for (size_t i = 0; i < chars.size() && !matcher.stopped();) {
      std::string piece;
      for (int64_t n = rng.Between(0, 4); n > 0 && i < chars.size(); --n) piece += chars[i++];
      StopResult result = matcher.Push(piece);
      got.text += result.text;
      got.stop = result.stop;
      seen += piece;
      if (!matcher.stopped()) {
        ASSERT_EQ(matcher.held_bytes(), OracleHeld(seen, stops));
      }
    }
    if (!matcher.stopped()) got.text += matcher.Flush();
    ASSERT_EQ(got, Oracle(Join(chars), stops, include)) << "round " << round;
  }
}

TEST(StopMatcher, FindsAStopInsideAPiece) {
  StopMatcher matcher(std::vector<std::string>{"DE"});
  StopResult result = matcher.Push("ABCDEF");
  EXPECT_EQ(result.text, "ABC");
  EXPECT_EQ(result.stop, 0u);
  EXPECT_EQ(matcher.Push("more").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, HoldsNothingWhenNothingCanMatch) {
  StopMatcher matcher(std::vector<std::string>{"\n\nHuman:"});
  EXPECT_EQ(matcher.Push("Hello").text, "Hello");
  EXPECT_EQ(matcher.Push("\n").text, "");
  EXPECT_EQ(matcher.Push("a").text, "\na");
  EXPECT_EQ(matcher.Push("\n\nHum").text, "");
  EXPECT_EQ(matcher.Flush(), "\n\nHum");
}

TEST(StopMatcher, MatchesFourLongOverlappingStops) {
  std::vector<std::string> stops;
  for (int i = 0; i < 4; ++i) stops.push_back(std::string(1020, 'x') + "end" + char('0' + i));
  StopMatcher matcher(stops);
  std::string shown;
  for (int i = 0; i < 5'000; ++i) shown += matcher.Push("x").text;
  StopResult result = matcher.Push("end2!");
  EXPECT_EQ(shown + result.text, std::string(5'000 - 1'020, 'x'));
  EXPECT_EQ(result.stop, 2u);
}

TEST(StopMatcher, TextBeforeMinTokensNeitherMatchesNorBeginsAMatch) {
  StopMatcher matcher(std::vector<std::string>{"stop"});
  EXPECT_EQ(matcher.PushUnmatched("a stop st"), "a stop st");
  EXPECT_EQ(matcher.Push("op ").text, "op ");
  EXPECT_EQ(matcher.Push("stop").stop, 0u);
}

}  // namespace
}  // namespace millrace::text
