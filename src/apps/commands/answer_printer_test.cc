#include "apps/commands/answer_printer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::apps {
namespace {

std::string Printed(AnswerStyle style, const std::vector<Json>& deltas) {
  std::string out;
  AnswerPrinter printer(style, [&out](std::string_view text) { out += text; });
  for (const Json& delta : deltas) printer.Delta(delta);
  printer.End();
  return out;
}

const std::vector<Json> kThought = {{{"role", "assistant"}},
                                    {{"reasoning_content", "I "}},
                                    {{"reasoning_content", "think"}},
                                    {{"content", "yes"}},
                                    {{"content", "!"}}};

TEST(AnswerPrinter, ReasoningIsMarked) {
  EXPECT_EQ(Printed({}, kThought), "<think>\nI think\n</think>\n\nyes!\n");
  EXPECT_EQ(Printed({.dim = true}, kThought), "\x1b[2mI think\x1b[0m\n\nyes!\n");
  EXPECT_EQ(Printed({.reasoning = false}, kThought), "yes!\n");
}

TEST(AnswerPrinter, AnAnswerThatIsCutWithinItsReasoningIsClosed) {
  const std::vector<Json> cut = {{{"reasoning_content", "hm\n"}}};
  EXPECT_EQ(Printed({}, cut), "<think>\nhm\n</think>\n\n");
  EXPECT_EQ(Printed({.dim = true}, cut), "\x1b[2mhm\n\x1b[0m\n");
}

TEST(AnswerPrinter, CallsHaveALineEach) {
  const auto call = [](const Json& function) {
    return Json{{"tool_calls", Json::array({{{"index", 0}, {"function", function}}})}};
  };
  EXPECT_EQ(Printed({}, {{{"content", "Let me see."}},
                         call({{"name", "get"}, {"arguments", ""}}),
                         call({{"arguments", "{\"a\":"}}),
                         call({{"arguments", "1}"}}),
                         call({{"name", "put"}, {"arguments", "{}"}})}),
            "Let me see.\n[call of get] {\"a\":1}\n[call of put] {}\n");
}

TEST(AnswerPrinter, WhatIsNoTextIsLeftOut) {
  EXPECT_EQ(Printed({}, {Json(),
                         Json(5),
                         {{"content", nullptr}},
                         {{"content", 7}},
                         {{"tool_calls", "x"}},
                         {{"tool_calls", {1}}}}),
            "\n");
}

}  // namespace
}  // namespace millrace::apps
