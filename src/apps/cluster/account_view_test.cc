#include "apps/cluster/account_view.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

Json Example() {
  return {{"id", 17},
          {"response_id", "cmpl-4f2a"},
          {"state", "finished"},
          {"finish_reason", "stop"},
          {"prompt_tokens", 512},
          {"output_tokens", 40},
          {"account",
           {{"wall_s", 4.2},
            {"entries",
             {{{"use", "prepare"}, {"seconds", 0.001}},
              {{"use", "queue"},
               {"cause", "kv_blocks"},
               {"seconds", 3.276},
               {"requests_ahead", 19},
               {"requests_running", 12},
               {"prompt_tokens_ahead", 8400},
               {"requests", {3, 4, 5}}},
              {{"use", "prefill"},
               {"seconds", 0.12},
               {"tokens", 512},
               {"steps", 2},
               {"other_tokens", 340},
               {"other_requests", 12}},
              {{"use", "recompute"},
               {"cause", "pipeline_lost"},
               {"seconds", 0.2},
               {"tokens", 530},
               {"steps", 3},
               {"layers", {4, 8}}},
              {{"use", "pull"},
               {"cause", "pipeline_lost"},
               {"seconds", 0.1},
               {"bytes", 50'000'000},
               {"pull_s", 0.05},
               {"from", "w1, w2"}},
              {{"use", "decode"}, {"seconds", 0.503}, {"tokens", 40}, {"steps", 40}}}},
            {"token_gaps",
             {{"count", 39},
              {"mean_s", 0.0121},
              {"largest",
               {{{"seconds", 0.18},
                 {"after_tokens", 12},
                 {"use", "decode"},
                 {"cause", "prompts_of_others"},
                 {"other_tokens", 2048},
                 {"requests", {21}}}}}}}}}};
}

TEST(AccountView, AnOperatorSeesTheEntriesTheirCausesAndTheCure) {
  const std::string text = FormatAccount(Example());
  for (const char* part :
       {"Request 17 (cmpl-4f2a): 4.2 s until it ended (stop); 512 tokens of prompt, 40 generated",
        "queue         3276.0 ms  78.0 %  #######################         queueing behind 31 "
        "requests, "
        "12 of them running (3, 4, 5 ...): KV blocks were full",
        "computing its prompt: 512 tokens in 2 steps, beside 340 tokens of 12 other requests",
        "530 tokens in 3 steps, layers 4-7 only", "50.0 MB in 50.0 ms, 1.00 GB/s from w1, w2",
        "what took less than 0.05 % each", "Between tokens: 12.1 ms on average",
        "180.0 ms after 12 tokens: decoding in steps that also computed prompts of others, 2,048 "
        "tokens (request 21)",
        "\n78 % of 4.2 s was queueing behind 31 requests, 12 of them running (3, 4, 5 ...): KV "
        "blocks were full. Cure: more KV memory (--kv-cache-memory)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(AccountView, TheVerdictAddsUpWhatIsOfOneKind) {
  Json request = Example();
  Json& entries = request["account"]["entries"];
  entries[1]["seconds"] = 0.5;
  for (int i = 0; i < 2; ++i) {
    entries.push_back({{"use", "preempted"}, {"cause", "kv_blocks"}, {"seconds", 0.45}});
  }
  EXPECT_EQ(AccountVerdict(request).substr(0, 32), "21 % of 4.2 s was waiting withou");
}

TEST(AccountView, AnswersOfOtherVersionsAreNoErrors) {
  EXPECT_NE(FormatAccount({{"id", 3}, {"state", "running"}}).find("no account"), std::string::npos);
  Json request = Example();
  request["account"]["entries"] = {{{"use", "teleport\x1b"}, {"seconds", 4}}, 7, "x"};
  request["account"]["token_gaps"] = 3;
  const std::string text = FormatAccount(request);
  EXPECT_NE(text.find("teleport"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << "text from a server is made printable";
  EXPECT_EQ(AccountVerdict(request), "");
}

TEST(AccountView, TheSlowestAreALineEach) {
  EXPECT_NE(FormatSlowest({{"requests", {Example()}}}).find("17       4.2 s  512     40      78 %"),
            std::string::npos)
      << FormatSlowest({{"requests", {Example()}}});
  EXPECT_EQ(FormatSlowest({{"requests", Json::array()}}), "No request has ended so far.\n");
}

}  // namespace
}  // namespace millrace::apps
