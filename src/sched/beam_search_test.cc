// Beam search (vLLM section 4.4). That its answers do not depend on the schedule is in
// outputs_test.cc and moves_test.cc.
#include "sched/beam_search.h"

#include <gtest/gtest.h>

#include <set>

#include "sched/testing/harness.h"

namespace millrace::sched {
namespace {

PositionLogprobs Candidates(std::vector<std::pair<TokenId, float>> tokens) {
  PositionLogprobs offer;
  for (const auto& [token, logprob] : tokens) offer.top.push_back({token, logprob, 0});
  return offer;
}

constexpr TokenId kStop = 9;
SamplingParams Beams(int n, double length_penalty = 1) {
  return {.n = n, .temperature = 0, .beam_search = true, .length_penalty = length_penalty};
}

class TwoBeams : public testing::Test {
 protected:
  // Both beams are of these tokens.
  std::vector<BeamSearch::Child> Advance() {
    std::vector<const std::vector<TokenId>*> outputs;
    for (const auto& output : outputs_) outputs.push_back(&output);
    auto children = search_.Advance(outputs);
    std::vector<std::vector<TokenId>> next(2);
    for (const BeamSearch::Child& child : children) {
      next[static_cast<size_t>(child.sequence)] = outputs_[static_cast<size_t>(child.parent)];
      next[static_cast<size_t>(child.sequence)].push_back(child.token);
    }
    outputs_ = std::move(next);
    return children;
  }

  std::vector<std::vector<TokenId>> outputs_{2};
  BeamSearch search_{Beams(2), std::array{kStop}, 3, nullptr};
};

TEST_F(TwoBeams, BeginAsOne) {
  for (int i : {0, 1}) search_.Offer(i, Candidates({{1, -1}, {2, -2}, {3, -3}}));
  const auto children = Advance();
  ASSERT_EQ(children.size(), 2u);
  EXPECT_EQ(outputs_, (std::vector<std::vector<TokenId>>{{1}, {2}}));
}

TEST_F(TwoBeams, TheBetterTakesBothAndTheOtherEnds) {
  for (int i : {0, 1}) search_.Offer(i, Candidates({{1, -1}, {2, -2}, {3, -3}}));
  Advance();
  search_.Offer(0, Candidates({{4, -0.1f}, {5, -0.2f}, {6, -3}}));
  search_.Offer(1, Candidates({{4, -0.1f}, {5, -0.2f}, {6, -3}}));
  const auto children = Advance();
  EXPECT_EQ(outputs_, (std::vector<std::vector<TokenId>>{{1, 4}, {1, 5}}));
  EXPECT_EQ(children[1].sequence, 1);
  EXPECT_EQ(children[1].parent, 0);
}

TEST_F(TwoBeams, AnswersAreByScore) {
  for (int i : {0, 1}) search_.Offer(i, Candidates({{1, -1}, {kStop, -1.5f}, {2, -2}}));
  Advance();
  search_.Offer(0, Candidates({{kStop, -3}, {4, -4}, {5, -9}}));
  search_.Offer(1, Candidates({{6, -1}, {7, -2}, {8, -9}}));
  Advance();  // 1 stop: -4 / 1; 2, 6: -3; 2, 7: -4
  search_.Offer(0, Candidates({{1, -1}, {2, -2}, {3, -9}}));
  search_.Offer(1, Candidates({{1, -1}, {2, -2}, {3, -9}}));
  EXPECT_TRUE(Advance().empty()) << "the limit";
  const auto answers = search_.TakeAnswers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].tokens.size(), 3u);  // -4 / 3
  EXPECT_NEAR(answers[0].score, -4.0 / 3, 1e-6);
  EXPECT_EQ(answers[0].finish, FinishReason::kLength);
  EXPECT_EQ(answers[1].tokens, std::vector<TokenId>{kStop});
  EXPECT_NEAR(answers[1].score, -1.5, 1e-6);
}

TEST_F(TwoBeams, EndsWhenNoBeamCanBecomeBetter) {
  for (int i : {0, 1}) search_.Offer(i, Candidates({{kStop, -0.1f}, {1, -5}, {2, -6}}));
  EXPECT_FALSE(Advance().empty()) << "one answer of two";
  search_.Offer(0, Candidates({{kStop, -0.1f}, {3, -30}, {4, -31}}));
  search_.Offer(1, Candidates({{kStop, -0.1f}, {3, -30}, {4, -31}}));
  EXPECT_TRUE(Advance().empty()) << "-35 / 3 is less than -5.1";
  EXPECT_EQ(search_.TakeAnswers().size(), 2u);
}

SchedulerOptions BeamOptions() {
  return {.block_size = 4,
          .num_blocks = 400,
          .max_num_seqs = 16,
          .max_num_batched_tokens = 256,
          .max_model_len = 128};
}

// Blocks in use against those that the beams would have apart, at most and summed over the steps.
struct Saving {
  double blocks = 0, apart = 0, copies = 0;
};
Saving Measure(int n, int prompt, int output) {
  Harness h({.scheduler = BeamOptions(), .vocab_size = 60});
  const RequestId id = h.MustAdd(std::vector<TokenId>(static_cast<size_t>(prompt), 3), [&] {
    SamplingParams p = Beams(n);
    p.max_tokens = output;
    return p;
  }());
  Saving saving;
  while (h.scheduler().HasWork()) {
    h.Turn();
    const auto info = h.scheduler().Inspect(id, h.now());
    if (!info) continue;
    saving.blocks += info->blocks;
    saving.apart += n * ((info->computed_tokens / n + 3) / 4);
  }
  saving.copies = static_cast<double>(h.scheduler().Stats().copied_blocks);
  EXPECT_TRUE(h.finished(id));
  return saving;
}

// vLLM figure 15: beams share more than the prompt, because they come from the same beams, so beam
// search saves more than sampling n sequences does.
TEST(Beams, ShareBlocksInMidAnswer) {
  const Saving saving = Measure(6, 5, 60);
  EXPECT_LT(saving.blocks, 0.6 * saving.apart)
      << saving.blocks << " of " << saving.apart << " blocks";
  EXPECT_GT(saving.copies, 10) << "copy-on-write in mid-answer";
}

TEST(Beams, NothingIsDeliveredBeforeTheEnd) {
  Harness h({.scheduler = BeamOptions(), .vocab_size = 60});
  SamplingParams params = Beams(3);
  params.max_tokens = 10;
  params.logprobs = 2;
  const RequestId id = h.MustAdd({1, 2, 3}, params);
  while (h.scheduler().HasWork()) {
    EXPECT_FALSE(h.finished(id));
    EXPECT_TRUE(h.outcome(id, 0).tokens.empty());
    h.Turn();
  }
  std::set<std::vector<TokenId>> answers;
  for (int i = 0; i < 3; ++i) {
    const SequenceOutcome& outcome = h.outcome(id, i);
    answers.insert(outcome.tokens);
    ASSERT_EQ(outcome.logprobs.size(), outcome.tokens.size());
    for (size_t t = 0; t < outcome.tokens.size(); ++t) {
      EXPECT_EQ(outcome.logprobs[t].chosen.token, outcome.tokens[t]);
      EXPECT_EQ(outcome.logprobs[t].top.size(), 2u);
    }
  }
  EXPECT_EQ(answers.size(), 3u);
}

TEST(Beams, AnErrorOfOneEndsTheSearch) {
  Harness h({.scheduler = BeamOptions(), .vocab_size = 60});
  SamplingParams params = Beams(3);
  params.max_tokens = 10;
  const RequestId id = h.MustAdd({1, 2, 3}, params);
  for (int i = 0; i < 3; ++i) h.Turn();
  ASSERT_NE(h.Schedule(), nullptr);
  h.Commit([](StepResult& result) { result.sequences[1].error = Internal("NaN"); });
  h.RunToEnd();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(h.outcome(id, i).finish, FinishReason::kError);
}

TEST(Beams, AreAbortedOnlyAsAWhole) {
  Harness h({.scheduler = BeamOptions(), .vocab_size = 60});
  SamplingParams params = Beams(2);
  params.max_tokens = 10;
  const RequestId one = h.MustAdd({1, 2, 3}, params), all = h.MustAdd({1, 2, 3}, params);
  for (int i = 0; i < 3; ++i) h.Turn();
  h.Abort(one, 1);
  h.Abort(all);
  h.RunToEnd();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(h.outcome(one, i).finish, FinishReason::kLength);
    EXPECT_EQ(h.outcome(all, i).finish, FinishReason::kAbort);
  }
}

// A controller that was lost between the records of two answers.
TEST(Beams, AnswersThatWereDeliveredAreNotDeliveredAgain) {
  Harness first({.scheduler = BeamOptions(), .vocab_size = 60}),
      again({.scheduler = BeamOptions(), .vocab_size = 60});
  SamplingParams params = Beams(3);
  params.max_tokens = 12;
  const RequestId id = first.MustAdd({1, 2, 3}, params);
  first.RunToEnd();
  const RequestId second = again.MustAdd({1, 2, 3}, params, [&](NewRequest& r) {
    r.resumed.resize(3);
    r.resumed[0] = {first.outcome(id, 0).tokens, true};
  });
  again.RunToEnd();
  EXPECT_TRUE(again.outcome(second, 0).tokens.empty());
  for (int i : {1, 2}) EXPECT_EQ(again.outcome(second, i).tokens, first.outcome(id, i).tokens);
}

TEST(Beams, AreNotImportedOrHandedOver) {
  Harness h({.scheduler = BeamOptions()});
  SamplingParams params = Beams(2);
  params.max_tokens = 10;
  EXPECT_FALSE(h.Add({1, 2}, params, [](NewRequest& r) { r.stop_after_prompt = true; }).ok());
  EXPECT_FALSE(h.Add({1, 2}, params, [](NewRequest& r) { r.imported_tokens = {1, 1}; }).ok());
}

}  // namespace
}  // namespace millrace::sched
