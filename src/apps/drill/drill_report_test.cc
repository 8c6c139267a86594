#include "apps/drill/drill_report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace millrace::apps {
namespace {

const std::vector<std::string> kExpectedTexts = {"the sea was calm", "the rope broke"};

DrillAnswer Answered(int client, size_t request, std::vector<double> pieces_s = {1, 2, 3}) {
  return {.client = client,
          .request = request,
          .text = kExpectedTexts[request],
          .error = "",
          .tokens = 3,
          .connections = 1,
          .asked_s = 0.5,
          .pieces_s = std::move(pieces_s)};
}

DrillStep StepAt(double began_s, double ended_s) {
  return {.name = "kill", .began_s = began_s, .ended_s = ended_s, .streams = 2};
}

DrillReport JudgeThem(const std::vector<DrillAnswer>& answers,
                      const std::vector<DrillStep>& steps = {StepAt(1, 2)}) {
  return Judge(DrillRequests(2, 10), kExpectedTexts, answers, steps);
}

TEST(DrillRequests, DifferAndAlternate) {
  const auto requests = DrillRequests(20, 7);
  std::set<std::string> prompts;
  for (size_t i = 0; i < requests.size(); ++i) {
    prompts.insert(requests[i].prompt);
    EXPECT_EQ(requests[i].greedy, i % 2 == 0);
    EXPECT_EQ(requests[i].max_tokens, 7);
  }
  EXPECT_EQ(prompts.size(), 20u);
}

TEST(DrillReport, PassesWhenAllAreIdentical) {
  const DrillReport report = JudgeThem({Answered(0, 0), Answered(1, 1), Answered(0, 1)});
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.identical, 3);
  EXPECT_EQ(report.tokens, 9);
  EXPECT_EQ(report.clients[0].answers, 2);
  EXPECT_NE(ReportText(report).find("All 3 answers with 9 tokens are the same"), std::string::npos);
  EXPECT_EQ(ReportJson(report)["passed"], true);
}

TEST(DrillReport, FailsForOneByte) {
  for (size_t byte = 0; byte < kExpectedTexts[1].size(); ++byte) {
    DrillAnswer changed = Answered(1, 1);
    changed.text[byte] ^= 1;
    const DrillReport report = JudgeThem({Answered(0, 0), changed});
    EXPECT_FALSE(report.passed()) << byte;
    EXPECT_EQ(report.different, 1);
    EXPECT_NE(report.Failure().find(fmt::format("stream 2, request 2: byte {} ", byte)),
              std::string::npos)
        << report.Failure();
    EXPECT_NE(ReportText(report).find("FAILED: 1 of 2 answers differ"), std::string::npos);
    EXPECT_EQ(ReportJson(report)["passed"], false);
  }
}

TEST(DrillReport, FailsForARepeatedToken) {
  DrillAnswer repeated = Answered(0, 0);
  repeated.text += " calm";
  EXPECT_EQ(Compare(repeated, kExpectedTexts), AnswerVerdict::kDifferent);
}

TEST(DrillReport, FailsForALostEnd) {
  DrillAnswer cut = Answered(0, 0);
  cut.text.resize(5);
  EXPECT_EQ(Compare(cut, kExpectedTexts), AnswerVerdict::kLost);
  DrillAnswer broken = Answered(0, 0);
  broken.error = "the stream broke off";
  EXPECT_EQ(Compare(broken, kExpectedTexts), AnswerVerdict::kLost);
  const DrillReport report = JudgeThem({broken, Answered(1, 1)});
  EXPECT_EQ(report.lost, 1);
  EXPECT_NE(report.Failure().find("the stream broke off after 16 of 16 bytes"), std::string::npos)
      << report.Failure();
}

TEST(DrillReport, NothingComparedProvesNothing) {
  EXPECT_FALSE(JudgeThem({}).passed());
  EXPECT_FALSE(JudgeThem({Answered(0, 0)}).passed()) << "the second client got nothing";
  EXPECT_FALSE(JudgeThem({Answered(0, 0), Answered(1, 1)}, {}).passed()) << "nothing happened";
  DrillStep idle = StepAt(1, 2);
  idle.streams = 0;
  const DrillReport report = JudgeThem({Answered(0, 0), Answered(1, 1)}, {idle});
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.Failure(), "no stream ran when the step 'kill' began, so it shows nothing");
}

TEST(DrillReport, SilencesBelongToTheStepsThatTheyTouch) {
  const DrillAnswer answer = Answered(0, 0, {1, 1.2, 4, 4.1});
  EXPECT_DOUBLE_EQ(LongestSilence(answer, 0, 10), 2.8);
  EXPECT_DOUBLE_EQ(LongestSilence(answer, 2, 3), 2.8) << "within one silence";
  EXPECT_DOUBLE_EQ(LongestSilence(answer, 0, 1.1), 0.5) << "before the first piece";
  EXPECT_DOUBLE_EQ(LongestSilence(answer, 5, 6), 0) << "after its end";
  const DrillReport report =
      JudgeThem({answer, Answered(1, 1, {1, 1.1})}, {StepAt(0.6, 1.1), StepAt(3, 3.5)});
  EXPECT_DOUBLE_EQ(report.steps[0].longest_silence_s, 0.5);
  EXPECT_DOUBLE_EQ(report.steps[1].longest_silence_s, 2.8);
  EXPECT_DOUBLE_EQ(report.clients[0].longest_silence_s, 2.8);
  EXPECT_DOUBLE_EQ(report.clients[1].longest_silence_s, 0.5);
}

TEST(CounterIn, SumsTheSamplesOfOneName) {
  const std::string_view text =
      "# HELP a_total What a_total is.\n# TYPE a_total counter\n"
      "a_total{model=\"x y\"} 3\na_total{model=\"z\"} 4.5\na_total_more 100\nb_total 7\n";
  EXPECT_EQ(CounterIn(text, "a_total"), 7.5);
  EXPECT_EQ(CounterIn(text, "b_total"), 7);
  EXPECT_EQ(CounterIn(text, "c_total"), 0);
  EXPECT_EQ(CounterIn("", "a_total"), 0);
}

}  // namespace
}  // namespace millrace::apps
