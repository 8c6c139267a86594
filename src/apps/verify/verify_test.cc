#include "apps/verify/verify.h"

#include <gtest/gtest.h>

#include "serve/observe/request_log.h"

namespace millrace::apps {
namespace {

serve::LoggedRequest Logged() {
  return {.unix_ms = 1,
          .id = "cmpl-1",
          .chat = false,
          .fingerprint = "fp_a",
          .body = R"({"prompt":"x","stream":true,"zebra":{"b":1,"a":2},"n":2})",
          .prompt = {5, 6},
          .seed = 18446744073709551615u,
          .answers = {{{1, 2, 3}, "length"}, {{4}, "stop"}}};
}

LoggedLine Line() {
  return ParseRequestLog(serve::EncodeLoggedRequest(Logged()) + "\n").value().front();
}

std::string Answer(const std::string& choices, const std::string& fingerprint = "fp_a",
                   const std::string& prompt = "[5,6]") {
  return R"({"system_fingerprint":")" + fingerprint + R"(","prompt_token_ids":)" + prompt +
         R"(,"choices":[)" + choices + "]}";
}

TEST(Verify, ALineAsksForTheSameAgain) {
  const LoggedLine line = Line();
  EXPECT_EQ(line.number, 1);
  EXPECT_EQ(line.answers, (std::vector<std::vector<TokenId>>{{1, 2, 3}, {4}}));
  EXPECT_EQ(line.body, R"({"prompt":[5,6],"zebra":{"b":1,"a":2},"n":2,"seed":18446744073709551615,)"
                       R"("return_token_ids":true})");
}

TEST(Verify, ALastLineThatWasCutIsLeftOutAndOthersAreNot) {
  const std::string line = serve::EncodeLoggedRequest(Logged()) + "\n";
  EXPECT_EQ(ParseRequestLog(line + line.substr(0, 40))->size(), 1u);
  EXPECT_EQ(ParseRequestLog("").status().message(), "it has no requests");
  EXPECT_EQ(ParseRequestLog(line + "x\n").status().message(),
            "line 2 is not of a request log (not a JSON object); millrace serve --request-log "
            "writes one");
  EXPECT_FALSE(ParseRequestLog("{\"millrace_step_log\":4}\n").ok());
  EXPECT_FALSE(ParseRequestLog("{\"millrace_request_log\":2}\n").ok());
  EXPECT_FALSE(ParseRequestLog("{\"millrace_request_log\":1,\"id\":5}\n").ok());
}

TEST(Verify, SaysWhereAnAnswerDiffers) {
  const LoggedLine line = Line();
  const auto compare = [&](const std::string& body) { return Compare(line, 200, body); };
  const std::string four = R"(,{"token_ids":[4]})";
  EXPECT_EQ(compare(Answer(R"({"token_ids":[1,2,3]})" + four)).outcome, Sameness::kSame);
  Verdict verdict = compare(Answer(R"({"token_ids":[1,9,3]})" + four));
  EXPECT_EQ(verdict.outcome, Sameness::kDifferent);
  EXPECT_EQ(verdict.detail, "choice 0, position 1: was token 2, is token 9");
  verdict = compare(Answer(R"({"token_ids":[1,2]})" + four));
  EXPECT_EQ(verdict.detail, "choice 0, position 2: was token 3, is the end");
  verdict = compare(Answer(R"({"token_ids":[1,2,3]},{"token_ids":[4,4]})"));
  EXPECT_EQ(verdict.detail, "choice 1, position 1: was the end, is token 4");
  verdict = compare(Answer(R"({"token_ids":[1,2,9]})" + four, "fp_b"));
  EXPECT_EQ(verdict.outcome, Sameness::kOtherBits);
  EXPECT_EQ(verdict.detail,
            "choice 0, position 2: was token 3, is token 9; it was computed by fp_a, and now by "
            "fp_b: the numeric class is the same, so the weights or the KV cache's type differ");
  verdict = compare(Answer(R"({"token_ids":[1,2,9]})" + four, "fp_b_cpu-bits-3"));
  EXPECT_EQ(verdict.detail,
            "choice 0, position 2: was token 3, is token 9; it was computed by fp_a, and now by "
            "fp_b_cpu-bits-3: the numeric class was older than cpu-bits-3, and is cpu-bits-3");
  EXPECT_EQ(compare(Answer(R"({"token_ids":[1,2,3]})" + four, "fp_b")).outcome, Sameness::kSame);
  EXPECT_EQ(compare(Answer(R"({"token_ids":[1,2,3]})" + four, "fp_a", "[5]")).outcome,
            Sameness::kOtherPrompt);
}

TEST(Verify, WhatIsNoAnswerHasFailed) {
  const LoggedLine line = Line();
  EXPECT_EQ(Compare(line, 404, R"({"error":{"message":"no such model"}})").detail,
            "HTTP 404: no such model");
  EXPECT_EQ(Compare(line, 200, "{}").outcome, Sameness::kFailed);
  EXPECT_EQ(Compare(line, 200, "x").outcome, Sameness::kFailed);
  EXPECT_EQ(Compare(line, 200, Answer("{},{}")).outcome, Sameness::kFailed);
}

TEST(Verify, SumsUp) {
  const std::vector<LoggedLine> lines(3, Line());
  VerifySummary same = Summarize(lines, std::vector<Verdict>(3, {Sameness::kSame, ""}), 1);
  EXPECT_EQ(same.ToText(), "3 of 3 requests have the same bits (12 tokens)\n");
  EXPECT_TRUE(same.status().ok());
  const std::vector<Verdict> mixed = {
      {Sameness::kSame, ""}, {Sameness::kDifferent, "position 0"}, {Sameness::kFailed, "HTTP 500"}};
  VerifySummary summary = Summarize(lines, mixed, 1);
  EXPECT_EQ(summary.ToText(),
            "line 1, cmpl-1: position 0\n... and 1 more\n1 of 3 requests have the same bits (12 "
            "tokens)\n1 differ although workers of the same class computed them: please report "
            "this\n1 got no answer\n");
  EXPECT_EQ(summary.status().message(), "2 of 3 requests do not have the bits of the log");
  EXPECT_EQ(summary.ToJson()["same"], 1);
}

}  // namespace
}  // namespace millrace::apps
