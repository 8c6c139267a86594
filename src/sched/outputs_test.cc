// Promise 1: the answer depends on the question only. Whatever the pool, the chunking, the
// preemption, the prefix cache, the company or the stages, every sequence gets the tokens that it
// would get alone, each once and in order.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "base/test_scale.h"
#include "sched/testing/harness.h"

namespace millrace::sched {
namespace {

constexpr int kVocab = 200;
constexpr TokenId kEos = 7;

struct Question {
  std::vector<TokenId> prompt;
  SamplingParams params;
  uint64_t seed = 0;
};

std::vector<Question> RandomQuestions(Rng& rng, int count, int prompt_max, int output_max,
                                      int n_max) {
  std::vector<Question> questions;
  std::vector<TokenId> common(prompt_max);
  for (TokenId& t : common) t = static_cast<TokenId>(rng.Between(0, kVocab - 1));
  for (int i = 0; i < count; ++i) {
    Question q;
    q.prompt.assign(common.begin(), common.begin() + rng.Between(0, prompt_max - 1));
    const int64_t own = rng.Between(1, prompt_max - static_cast<int64_t>(q.prompt.size()));
    for (int64_t t = 0; t < own; ++t) {
      q.prompt.push_back(static_cast<TokenId>(rng.Between(0, kVocab - 1)));
    }
    q.params.n = static_cast<int>(rng.Between(1, n_max));
    q.params.max_tokens = static_cast<int>(rng.Between(1, output_max));
    q.params.min_tokens = static_cast<int>(rng.Between(0, *q.params.max_tokens));
    q.params.temperature = rng.Between(0, 1) ? 1.0 : 0.0;
    q.params.ignore_eos = rng.Between(0, 3) == 0;
    if (rng.Between(0, 3) == 0) q.params.logprobs = 0;
    if (rng.Between(0, 5) == 0) q.params.prompt_logprobs = 0;
    if (rng.Between(0, 3) == 0) q.params.stop_token_ids = {11, 13};
    q.seed = rng.Next();
    questions.push_back(std::move(q));
  }
  return questions;
}

// The whole answer by the definition, without a scheduler.
std::vector<TokenId> Expected(const Question& q, int index) {
  const ContextHashModel model({.vocab_size = kVocab, .eos_token_ids = {kEos}});
  const auto tokens =
      model.Generate(q.prompt, q.params, SequenceSeed(q.seed, index), *q.params.max_tokens);
  for (size_t i = q.params.min_tokens; i < tokens.size(); ++i) {
    const auto& stops = q.params.stop_token_ids;
    if ((tokens[i] == kEos && !q.params.ignore_eos) ||
        std::find(stops.begin(), stops.end(), tokens[i]) != stops.end()) {
      return {tokens.begin(), tokens.begin() + i + 1};
    }
  }
  return tokens;
}

struct Totals {
  uint64_t recomputes = 0, swaps = 0, hits = 0, copies = 0;
};

void CheckRun(const std::vector<Question>& questions, const SchedulerOptions& options, Rng& rng,
              Totals& totals) {
  Harness h({.scheduler = options, .vocab_size = kVocab});
  std::vector<RequestId> ids;
  for (const Question& q : questions) {
    const auto id = h.Add(q.prompt, q.params, [&](NewRequest& r) { r.seed = q.seed; });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    ids.push_back(*id);
    for (int64_t turns = rng.Between(0, 3); turns > 0; --turns) h.Turn();
  }
  h.RunToEnd();
  for (size_t i = 0; i < questions.size(); ++i) {
    for (int k = 0; k < questions[i].params.n; ++k) {
      const SequenceOutcome& outcome = h.outcome(ids[i], k);
      ASSERT_EQ(outcome.tokens, Expected(questions[i], k)) << "request " << i << " sequence " << k;
      EXPECT_EQ(outcome.logprobs.size(), questions[i].params.logprobs ? outcome.tokens.size() : 0);
      EXPECT_EQ(outcome.prompt_logprobs.size(),
                questions[i].params.prompt_logprobs ? questions[i].prompt.size() - 1 : 0);
    }
  }
  const SchedulerStats stats = h.scheduler().Stats();
  EXPECT_EQ(stats.blocks_free, options.num_blocks);
  EXPECT_EQ(stats.host_blocks_used, 0);
  totals.recomputes += stats.preemptions_recompute;
  totals.swaps += stats.preemptions_swap;
  totals.hits += stats.prefix_hit_tokens;
  totals.copies += stats.copied_blocks;
}

// The most blocks that one of the questions can hold: with a pool of this size everybody else is
// pushed out at times.
int TightestPool(const std::vector<Question>& questions, int block_size) {
  int most = 0;
  for (const Question& q : questions) {
    const int prompt = static_cast<int>(q.prompt.size());
    const int each = (prompt + *q.params.max_tokens - 1 + block_size - 1) / block_size;
    const int shared = q.params.n > 1 ? (prompt - 1) / block_size : 0;
    most = std::max(most, shared + q.params.n * (each - shared));
  }
  return most;
}

TEST(Outputs, EqualAloneForEveryScheduleSeed) {
  Totals totals;
  const uint64_t cases = 400 * TestScale();
  for (uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto questions = RandomQuestions(rng, static_cast<int>(rng.Between(1, 12)), 24, 16, 4);
    SchedulerOptions o;
    o.block_size = static_cast<int>(rng.Between(1, 8));
    o.max_model_len = 40;
    o.num_blocks = TightestPool(questions, o.block_size) + static_cast<int>(rng.Between(0, 9));
    o.num_host_blocks = static_cast<int>(rng.Between(0, 1) * rng.Between(1, 2 * o.num_blocks));
    o.max_num_seqs = static_cast<int>(rng.Between(1, 10));
    o.max_num_batched_tokens = static_cast<int>(rng.Between(1, 64));
    o.stages = static_cast<int>(rng.Between(1, 4));
    o.prefix_caching = rng.Between(0, 1);
    o.hashes_collide = rng.Between(0, 9) == 0;
    o.watermark = rng.Between(0, 1) ? 0.0 : 0.1;
    o.preemption = !o.num_host_blocks  ? PreemptionMode::kRecompute
                   : rng.Between(0, 1) ? PreemptionMode::kSwap
                                       : PreemptionMode::kAuto;
    o.eos_token_ids = {kEos};
    o.step_mix = rng.Between(0, 2) ? StepMix::kMixed : StepMix::kPrefillFirst;
    CheckRun(questions, o, rng, totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(totals.recomputes, 100u);
  EXPECT_GT(totals.swaps, 100u);
  EXPECT_GT(totals.hits, 1000u);
  EXPECT_GT(totals.copies, 100u);
}

}  // namespace
}  // namespace millrace::sched
