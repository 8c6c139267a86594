#include "text/json_scanner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "text/json_text.h"

namespace millrace::text {
namespace {

// What the scanner writes of the text, and how it ends.
std::string Scanned(std::string_view text) {
  JsonScanner scanner;
  std::string written;
  for (const char c : text) {
    switch (scanner.Take(c, written)) {
      case JsonScanner::Step::kMore: break;
      case JsonScanner::Step::kDone: return written;
      case JsonScanner::Step::kAfter: return written + " after";
      case JsonScanner::Step::kBad: return "bad";
    }
  }
  return written + " more";
}

TEST(JsonScanner, WritesJsonAsItIs) {
  for (
      const char* text :
      {R"({"a": [1, -0, 2.50, 1e-5, 1E+10, 0.1], "b": {"c": null}, "d": [true, false, []], "e": {}})",
       R"("a\"\\\/\b\f\n\r\tA😀é")", "[ ]", "{\n}", R"({"a":"}]"})",
       "[123456789012345678901234567890]"}) {
    EXPECT_EQ(Scanned(text), text);
    EXPECT_EQ(Scanned(std::string(text) + "x"), text) << "it ends where the value does";
  }
  EXPECT_EQ(Scanned("12,"), "12 after");
  EXPECT_EQ(Scanned("true}"), "true after");
}

TEST(JsonScanner, RefusesWhatIsNone) {
  for (const char* text :
       {"{]",   "[}",        "{\"a\": 1]", "{'a': 1}",    "{a: 1}",      "{\"a\" 1}", "{\"a\": 1,}",
        "{,}",  "[1,]",      "[1 2]",      "{\"a\": 01}", "{\"a\": 1.}", "[.5]",      "[+1]",
        "[1e]", "[--1]",     "[nul]",      "[NaN]",       "[Infinity]",  "{1: 2}",    "}",
        "x",    "[trueish]", "[tru",       "{\"a\": }"}) {
    EXPECT_NE(Scanned(text), text);
    EXPECT_TRUE(Scanned(text) == "bad" || Scanned(text).ends_with(" more")) << text;
  }
  EXPECT_EQ(Scanned(std::string(1000, '[')), "bad");
}

TEST(JsonScanner, MendsStringsAndWords) {
  EXPECT_EQ(Scanned("{\"a\": \"one\ntwo\t\x01\"}"), R"({"a": "one\ntwo\t\u0001"})");
  EXPECT_EQ(Scanned(R"(["it\'s \d \x41"])"), R"(["it's \\d \\x41"])");
  EXPECT_EQ(Scanned(R"(["\u12zz"])"), R"(["\\u12zz"])");
  EXPECT_EQ(Scanned(R"(["\u12"])"), R"(["\\u12"])");
  EXPECT_EQ(Scanned(R"(["\ud83d"])"), R"(["\ufffd"])");
  EXPECT_EQ(Scanned(R"(["\ude00"])"), R"(["\ufffd"])");
  EXPECT_EQ(Scanned(R"(["\ud83d\ud83d\ude00x"])"), R"(["\ufffd\ud83d\ude00x"])");
  EXPECT_EQ(Scanned(R"(["\ud83d\n"])"), R"(["\ufffd\n"])");
  EXPECT_EQ(Scanned("[True, False, None]"), "[true, false, null]");
}

// Whatever it takes to its end is JSON, and JSON is taken as it is.
TEST(JsonScanner, AgreesWithAParser) {
  Rng rng(5);
  const std::string_view alphabet = "{}[],:\"\\ 01-.eEtrufalsn\nTFNdD8c'";
  int valid = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text = rng.Between(0, 1) == 0 ? "{\"a\":" : "[";
    for (int64_t k = rng.Between(1, 14); k > 0; --k) {
      text += alphabet[static_cast<size_t>(rng.Between(0, std::ssize(alphabet) - 1))];
    }
    text += text[0] == '{' ? "}" : "]";
    JsonScanner scanner;
    std::string written;
    auto step = JsonScanner::Step::kMore;
    size_t at = 0;
    while (at < text.size() && step == JsonScanner::Step::kMore)
      step = scanner.Take(text[at++], written);
    if (std::ranges::count_if(text, [](char c) { return c >= '0' && c <= '9'; }) > 3) continue;
    const bool whole = OrderedJson::accept(text);
    if (step == JsonScanner::Step::kDone) {
      EXPECT_TRUE(OrderedJson::accept(written)) << text;
    }
    if (whole) {
      ++valid;
      ASSERT_EQ(step, JsonScanner::Step::kDone) << text;
      ASSERT_EQ(written, text);
    }
  }
  EXPECT_GT(valid, 1000);
}

TEST(JsonScanner, MendedObjects) {
  EXPECT_EQ(MendedObject(" {\"a\": 1}\n"), "{\"a\": 1}");
  EXPECT_EQ(MendedObject(""), "{}");
  EXPECT_EQ(MendedObject(" \n"), "{}");
  for (const char* text : {"[1]", "1", "null", "{} x", "{\"a\": 1", "x {}"}) {
    EXPECT_EQ(MendedObject(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace millrace::text
