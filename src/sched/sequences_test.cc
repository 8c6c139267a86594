// The output of one sequence: finish rules, n > 1, prompt log-probabilities, prefix hits.
#include <gtest/gtest.h>

#include "sched/finish_rules.h"
#include "sched/step_room.h"
#include "sched/testing/harness.h"
#include "sched/testing/small.h"

namespace millrace::sched {
namespace {

SchedulerOptions Options() {
  SchedulerOptions o;
  o.block_size = 4;
  o.num_blocks = 64;
  o.max_num_seqs = 16;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 64;
  return o;
}

TEST(FinishRules, TokensLengthsAndTheirOrder) {
  const std::vector<TokenId> eos = {1, 2};
  SamplingParams params;
  params.stop_token_ids = {7};
  const auto after = [&](TokenId token, int outputs, int limit) {
    return FinishAfter(token, outputs, limit, params, eos);
  };
  EXPECT_EQ(after(5, 1, 10), std::nullopt);
  EXPECT_EQ(after(1, 1, 10), FinishReason::kStop);
  EXPECT_EQ(after(2, 1, 10), FinishReason::kStop);
  EXPECT_EQ(after(7, 1, 10), FinishReason::kStop);
  EXPECT_EQ(after(5, 10, 10), FinishReason::kLength);
  EXPECT_EQ(after(1, 10, 10), FinishReason::kStop) << "trap 35: EOS as the max_tokens-th token";
  params.ignore_eos = true;
  EXPECT_EQ(after(1, 1, 10), std::nullopt);
  EXPECT_EQ(after(7, 1, 10), FinishReason::kStop) << "stop tokens are not EOS";
  params.ignore_eos = false;
  params.min_tokens = 3;
  EXPECT_EQ(after(1, 3, 10), std::nullopt) << "trap 34: the first min_tokens do not stop";
  EXPECT_EQ(after(1, 4, 10), FinishReason::kStop);
}

TEST(Sequences, StopTokenAndLengthAreReported) {
  SchedulerOptions o = Options();
  Harness h({.scheduler = o});
  SamplingParams params;
  params.max_tokens = 20;
  const auto expected = h.model().Generate(Prompt(5), params, 0, 20);
  params.stop_token_ids = {expected[6]};
  const RequestId stopped = h.MustAdd(Prompt(5), params);
  params.stop_token_ids = {};
  const RequestId full = h.MustAdd(Prompt(5), params);
  params.max_tokens.reset();
  const RequestId to_the_end = h.MustAdd(Prompt(5), params);
  h.RunToEnd();
  EXPECT_EQ(h.outcome(stopped).tokens.size(), 7u);
  EXPECT_EQ(h.outcome(stopped).finish, FinishReason::kStop);
  EXPECT_EQ(h.outcome(full).tokens, expected);
  EXPECT_EQ(h.outcome(full).finish, FinishReason::kLength);
  EXPECT_EQ(h.outcome(to_the_end).tokens.size(), 59u) << "up to the model's length";
  for (const RequestOutput& out : h.TakeOutputs()) {
    if (out.finish == FinishReason::kStop) {
      EXPECT_EQ(out.stop_token, expected[6]);
    }
  }
}

// Trap 29: max_tokens reached while other steps are in flight: nothing is delivered twice.
TEST(Sequences, LengthWithStepsInFlight) {
  SchedulerOptions o = Options();
  o.stages = 4;
  o.max_num_seqs = 1;
  Harness h({.scheduler = o});
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) {
    SamplingParams params;
    params.max_tokens = 1 + i;
    ids.push_back(h.MustAdd(Prompt(3, i), params));
  }
  h.RunToEnd();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(h.outcome(ids[i]).tokens.size(), 1u + i);
}

// Feature 10, vLLM section 4.4: prompt blocks once; each of n equals a run alone with its seed; the
// prompt's last block is copied for all but one of its tables.
TEST(Sequences, NSamplesComputeThePromptOnce) {
  for (int prompt : {1, 3, 4, 5, 8, 9}) {
    SchedulerOptions o = Options();
    o.prefix_caching = false;
    Harness h({.scheduler = o});
    SamplingParams params;
    params.max_tokens = 6;
    params.n = 4;
    const RequestId id = h.MustAdd(Prompt(prompt), params, [](NewRequest& r) { r.seed = 99; });
    const StepPlan* first = h.Schedule();
    EXPECT_EQ(first->sequences.size(), 1u);
    EXPECT_EQ(first->tokens.size(), static_cast<size_t>(prompt));
    h.Commit();
    const StepPlan* second = h.Schedule();
    EXPECT_EQ(second->sequences.size(), 4u);
    EXPECT_EQ(second->tokens.size(), 4u) << "each sibling computes one prompt token again";
    EXPECT_EQ(second->copies.size(), 3u);
    EXPECT_EQ(second->started.size(), 3u);
    const int shared = (prompt - 1) / 4;
    EXPECT_EQ(h.scheduler().Inspect(id, {})->blocks, shared + 4 + (prompt % 4 == 0 ? 1 : 0))
        << "prompt " << prompt;
    h.Commit();
    h.RunToEnd();
    std::vector<std::vector<TokenId>> all;
    for (int k = 0; k < 4; ++k) {
      SamplingParams alone = params;
      alone.n = 1;
      const auto expected = h.model().Generate(Prompt(prompt), alone, SequenceSeed(99, k), 6);
      EXPECT_EQ(h.outcome(id, k).tokens, expected);
      all.push_back(expected);
    }
    EXPECT_NE(all[0], all[1]) << "the seeds differ";
  }
}

// Reliability 58: n = 8, one branch cancelled at each step.
TEST(Sequences, BranchesAreCancelledOneByOne) {
  Harness h({.scheduler = Options()});
  SamplingParams params;
  params.max_tokens = 20;
  params.n = 8;
  const RequestId id = h.MustAdd(Prompt(9), params);
  for (int k = 0; k < 8; ++k) {
    h.Turn();
    h.Abort(id, k);
  }
  h.RunToEnd();
  EXPECT_TRUE(h.finished(id));
  EXPECT_EQ(h.scheduler().Stats().blocks_free, 64);
  EXPECT_EQ(h.model().num_sequences(), 1) << "the last is released with the next plan";
  h.MustAdd(Prompt(3), SamplingParams{.max_tokens = 2});
  h.Turn();
  EXPECT_EQ(h.model().num_sequences(), 1);
}

// More sequences than may run at once: they take turns and all finish.
TEST(Sequences, MoreThanMaxNumSeqs) {
  SchedulerOptions o = Options();
  o.max_num_seqs = 3;
  Harness h({.scheduler = o});
  SamplingParams params;
  params.max_tokens = 5;
  params.n = 7;
  const RequestId id = h.MustAdd(Prompt(9), params);
  const RequestId next = h.MustAdd(Prompt(2), SamplingParams{.max_tokens = 2});
  h.Turn();
  EXPECT_EQ(h.scheduler().Inspect(next, {})->waits_for,
            "a place: it has 1 sequences and 0 more may run");
  h.RunToEnd();
  EXPECT_TRUE(h.finished(id));
  EXPECT_TRUE(h.finished(next));
}

// Feature 17: floor((len - 1) / B) * B, reported with the output; other salts and disabled caches
// find none.
TEST(PrefixCache, CountsWhatItFound) {
  Harness h({.scheduler = Options()});
  SamplingParams params;
  params.max_tokens = 3;
  const RequestId cold = h.MustAdd(Prompt(12), params);
  h.RunToEnd();
  const RequestId warm = h.MustAdd(Prompt(12), params);
  const RequestId salted = h.MustAdd(Prompt(12), params, [](NewRequest& r) { r.cache_salt = "s"; });
  h.RunToEnd();
  EXPECT_EQ(h.outcome(cold).cached_prompt_tokens, 0);
  EXPECT_EQ(h.outcome(warm).cached_prompt_tokens, 8);
  EXPECT_EQ(h.outcome(salted).cached_prompt_tokens, 0);
  EXPECT_EQ(h.outcome(warm).tokens, h.outcome(cold).tokens);
  EXPECT_EQ(h.outcome(salted).tokens, h.outcome(cold).tokens);
  EXPECT_EQ(h.scheduler().Stats().prefix_query_tokens, 36u);
  EXPECT_EQ(h.scheduler().Stats().prefix_hit_tokens, 8u);
  h.scheduler().ResetPrefixCache();
  const RequestId reset = h.MustAdd(Prompt(12), params);
  h.RunToEnd();
  EXPECT_EQ(h.outcome(reset).cached_prompt_tokens, 0);
}

// Trap 11: a failed step leaves nothing in the cache.
// The answer without adding the request is what admission finds.
TEST(PrefixCache, TellsWhatARequestWouldFind) {
  Harness h({.scheduler = {.block_size = 4, .num_blocks = 64, .max_model_len = 64}});
  SamplingParams params;
  params.max_tokens = 1;
  (void)h.MustAdd(Prompt(14), params);
  h.RunToEnd();
  kv::PrefixChain names, salted, other;
  const auto cached = [&](int tokens, std::string_view salt, kv::PrefixChain& chain) {
    return h.scheduler().CachedTokens(Prompt(tokens), salt, chain);
  };
  EXPECT_EQ(cached(14, "", names), 12);
  EXPECT_EQ(cached(14, "", names), 12) << "with the names of the call before";
  EXPECT_EQ(cached(14, "s", salted), 0);
  EXPECT_EQ(cached(12, "", other), 8) << "the last token is computed";
  const RequestId request = h.MustAdd(Prompt(14), params);
  h.RunToEnd();
  EXPECT_EQ(h.outcome(request).cached_prompt_tokens, 12);
}

TEST(PrefixCache, AFailedStepCachesNothing) {
  Harness h({.scheduler = Options()});
  SamplingParams params;
  params.max_tokens = 3;
  h.MustAdd(Prompt(12), params);
  h.Schedule();
  h.Commit([](StepResult& r) { r.error = Internal("boom"); });
  const RequestId second = h.MustAdd(Prompt(12), params);
  h.RunToEnd();
  EXPECT_EQ(h.outcome(second).cached_prompt_tokens, 0);
  EXPECT_EQ(h.outcome(second).tokens.size(), 3u);
}

// Output blocks are cached too: the next turn of a conversation finds prompt and answer.
TEST(PrefixCache, TheNextTurnFindsTheAnswer) {
  Harness h({.scheduler = Options()});
  SamplingParams params;
  params.max_tokens = 9;
  const RequestId first = h.MustAdd(Prompt(7), params);
  h.RunToEnd();
  std::vector<TokenId> next = Prompt(7);
  next.insert(next.end(), h.outcome(first).tokens.begin(), h.outcome(first).tokens.end());
  next.push_back(3);
  const RequestId second = h.MustAdd(next, params);
  h.RunToEnd();
  // 7 + 9 tokens, of which the last has no KV: 15 computed, 12 in full blocks.
  EXPECT_EQ(h.outcome(second).cached_prompt_tokens, 12);
}

// Traps 17, 24 and 27: prompt log-probabilities are complete and the same on a warm cache, in
// chunks, and after preemption; a request that asks for them does not read the cache.
TEST(PromptLogprobs, AreComplete) {
  std::vector<PositionLogprobs> expected;
  for (int variant = 0; variant < 4; ++variant) {
    SchedulerOptions o = Options();
    if (variant == 1) o.max_num_batched_tokens = 3;
    if (variant == 2) {
      o.num_blocks = 6;
      o.max_num_batched_tokens = 8;
      o.preemption = PreemptionMode::kRecompute;
      o.watermark = 0;
    }
    Harness h({.scheduler = o});
    SamplingParams params;
    params.max_tokens = 5;
    if (variant == 3) {
      h.MustAdd(Prompt(12), params);
      h.RunToEnd();
    }
    if (variant == 2) h.MustAdd(Prompt(4, 40), SamplingParams{.max_tokens = 18});
    params.prompt_logprobs = 0;
    const RequestId id = h.MustAdd(Prompt(12), params);
    h.RunToEnd();
    const auto& got = h.outcome(id).prompt_logprobs;
    ASSERT_EQ(got.size(), 11u);
    if (variant == 0) expected = got;
    EXPECT_EQ(h.scheduler().Stats().preemptions_recompute > 0, variant == 2);
    for (int i = 0; i < 11; ++i) {
      EXPECT_EQ(got[i].chosen.token, Prompt(12)[i + 1]);
      EXPECT_EQ(got[i].chosen.logprob, expected[i].chosen.logprob);
    }
    EXPECT_EQ(h.outcome(id).cached_prompt_tokens, 0);
  }
}

// A vector is the same on a warm cache, in chunks and after preemption. A mean does not read the
// cache, because it needs every token's state; the last token's state needs only the last token.
TEST(Vectors, AStepHasOnlySoManyOfThem) {
  Harness h({.scheduler = {.block_size = 4,
                           .num_blocks = 4096,
                           .max_num_seqs = 4096,
                           .max_num_batched_tokens = 4096,
                           .max_model_len = 64},
             .audit = false});
  std::vector<RequestId> ids;
  for (int i = 0; i < 2 * kVectorsPerStepMax + 100; ++i) {
    ids.push_back(h.MustAdd({1, 2}, {.pooling = Pooling::kLast}));
  }
  const RequestId text = h.MustAdd({1, 2}, {.max_tokens = 2});
  std::vector<size_t> steps;
  while (const StepPlan* plan = h.Schedule()) {
    steps.push_back(plan->sequences.size());
    h.Commit();
  }
  ASSERT_GE(steps.size(), 3u);
  EXPECT_EQ(steps[0], static_cast<size_t>(kVectorsPerStepMax));
  EXPECT_EQ(steps[1], static_cast<size_t>(kVectorsPerStepMax));
  EXPECT_EQ(steps[2], 101u) << "the rest, and the text";
  for (const RequestId id : ids) EXPECT_FALSE(h.outcome(id).pooled.empty());
  EXPECT_EQ(h.outcome(text).tokens.size(), 2u);
}

TEST(Vectors, AreTheSameHoweverThePromptIsComputed) {
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
    for (int variant = 0; variant < 4; ++variant) {
      SchedulerOptions o = Options();
      if (variant == 1) o.max_num_batched_tokens = 3;
      if (variant == 2) {
        o.num_blocks = 6;
        o.max_num_batched_tokens = 8;
        o.preemption = PreemptionMode::kRecompute;
        o.watermark = 0;
      }
      Harness h({.scheduler = o});
      if (variant == 3) {
        h.MustAdd(Prompt(12), SamplingParams{.max_tokens = 1});
        h.RunToEnd();
      }
      if (variant == 2) h.MustAdd(Prompt(4, 40), SamplingParams{.max_tokens = 18});
      const SchedulerStats before = h.scheduler().Stats();
      SamplingParams params;
      params.pooling = pooling;
      const RequestId id = h.MustAdd(Prompt(12), params);
      h.RunToEnd();
      EXPECT_EQ(h.outcome(id).pooled, ContextHashModel::Vector(Prompt(12)));
      EXPECT_EQ(h.outcome(id).finish, FinishReason::kStop);
      EXPECT_TRUE(h.outcome(id).tokens.empty());
      const bool hits = variant == 3 && pooling == Pooling::kLast;
      EXPECT_EQ(h.outcome(id).cached_prompt_tokens, hits ? 8 : 0);
      const SchedulerStats after = h.scheduler().Stats();
      EXPECT_EQ(after.prompt_tokens - before.prompt_tokens, variant == 2 ? 16u : 12u);
      EXPECT_EQ(after.generation_tokens - before.generation_tokens, variant == 2 ? 18u : 0u);
    }
  }
}

TEST(Vectors, ThePromptMayHaveTheModelsLength) {
  Harness h({.scheduler = Options()});
  const int most = Options().max_model_len;
  SamplingParams params;
  params.pooling = Pooling::kMean;
  const RequestId id = h.MustAdd(Prompt(most), params);
  h.RunToEnd();
  EXPECT_EQ(h.outcome(id).pooled, ContextHashModel::Vector(Prompt(most)));
  const auto refused = h.Add(Prompt(most + 1), params);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
}

TEST(Vectors, AStageThatReturnsATokenInsteadFailsTheRequest) {
  Harness h({.scheduler = Options()});
  SamplingParams params;
  params.pooling = Pooling::kLast;
  const RequestId id = h.MustAdd(Prompt(12), params);
  h.Schedule();
  h.Commit([](StepResult& result) {
    result.sequences[0].pooled.clear();
    result.sequences[0].token = 5;
  });
  EXPECT_EQ(h.outcome(id).error.code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace millrace::sched
