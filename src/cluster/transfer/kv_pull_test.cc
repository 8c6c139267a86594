// The state machine of a pull against sources that answer late, wrong, not yet or never.
#include "cluster/transfer/kv_pull.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "base/rng.h"
#include "stage/testing/hash_stage.h"

namespace millrace::cluster {
namespace {

using stage::ActivationRange;
using stage::KvBox;

const stage::HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};
constexpr PipelineId kPipeline{1};
constexpr int kPullTokens = 40, kBlockTokens = 4;
constexpr KvPullLimits kLimits = {.chunk_bytes = 128, .in_flight = 3};

Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }

// A stage of the hash model that also stores activations, and counts what is written.
class StoringStage : public stage::HashStage {
 public:
  StoringStage() : HashStage(kModel, {0, kModel.num_layers}) {
    EXPECT_TRUE(OpenPipeline(kPipeline, {.layers = layers(),
                                         .block_size = kBlockTokens,
                                         .num_blocks = kPullTokens / kBlockTokens})
                    .ok());
    for (int b = 0; b < kPullTokens / kBlockTokens; ++b) blocks.push_back(b);
  }
  Status WriteKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> table,
                 std::span<const std::byte> in) override {
    ++writes;
    EXPECT_TRUE(activations.empty()) << "KV drops cached activations, so they come after it";
    return HashStage::WriteKv(pipeline, box, table, in);
  }
  Status WriteActivations(PipelineId, const ActivationRange& range, std::span<const BlockIndex>,
                          std::span<const std::byte>) override {
    activations.push_back(range);
    return OkStatus();
  }
  bool HoldsActivations(PipelineId, const ActivationRange&,
                        std::span<const BlockIndex>) const override {
    int tokens = 0;
    for (const ActivationRange& range : activations) tokens += range.end_token - range.first_token;
    return tokens == kPullTokens;
  }
  std::vector<std::byte> All() const {
    const KvBox box{layers(), 0, kModel.heads, 0, kPullTokens};
    std::vector<std::byte> bytes(KvBytes(box));
    EXPECT_TRUE(ReadKv(kPipeline, box, blocks, bytes).ok());
    return bytes;
  }

  std::vector<BlockIndex> blocks;
  int writes = 0;
  std::vector<ActivationRange> activations;
};

class KvPullTest : public ::testing::Test {
 protected:
  KvPullTest() {
    Rng rng(3);
    const KvBox box{source_.layers(), 0, kModel.heads, 0, kPullTokens};
    std::vector<std::byte> bytes(source_.KvBytes(box));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next());
    EXPECT_TRUE(source_.WriteKv(kPipeline, box, source_.blocks, bytes).ok());
    for (const LayerRange layers : {LayerRange{0, 2}, LayerRange{2, 6}}) {
      KvSource source;
      source.from.incarnation = Incarnation(10 + static_cast<uint64_t>(layers.begin));
      source.layers = layers;
      order_.sources.push_back(source);
    }
    order_.pipeline = kPipeline;
    order_.transfer = TransferId(4);
    order_.blocks = stage_->blocks;
    order_.end_token = kPullTokens;
  }

  KvPull Start(const KvPullLimits& limits = kLimits) {
    return {{Incarnation(1), {}}, {0, 6}, stage_, order_, limits, At(0)};
  }
  void Take(KvPull& pull, Time now) {
    while (const auto ask = pull.NextAsk(now)) {
      EXPECT_LE(ask->bytes, kLimits.chunk_bytes);
      asked_.push_back(*ask);
      most_ = std::max(most_, asked_.size());
    }
  }
  // Answers the ask at this index as its source would.
  void Answer(KvPull& pull, size_t index, Time now) {
    const KvAsk ask = asked_[index];
    asked_.erase(asked_.begin() + static_cast<std::ptrdiff_t>(index));
    std::vector<std::byte> bytes(ask.bytes);
    const bool kv = std::holds_alternative<KvBox>(ask.item);
    EXPECT_EQ(source_.Read(kPipeline, ask.item, source_.blocks, bytes).ok(), kv);
    pull.Answered(ask.part, OkStatus(), bytes, now);
  }
  // Answers everything in a random order, one answer each millisecond.
  PullDone RunToTheEnd(KvPull& pull, Time now, Rng& rng) {
    for (int i = 0; i < 10'000 && !pull.ended(); ++i) {
      pull.Tick(now);
      Take(pull, now);
      if (!asked_.empty()) {
        const auto last = static_cast<int64_t>(asked_.size()) - 1;
        Answer(pull, static_cast<size_t>(rng.Between(0, last)), now);
      }
      now = now + Duration::Millis(1);
    }
    EXPECT_TRUE(pull.ended());
    return pull.Done(now);
  }

  StoringStage source_;
  std::shared_ptr<StoringStage> stage_ = std::make_shared<StoringStage>();
  PullKv order_;
  std::deque<KvAsk> asked_;
  size_t most_ = 0;
};

TEST_F(KvPullTest, EverythingArrivesInWhicheverOrderTheAnswersCome) {
  order_.activations = PulledActivations::kAny;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    stage_ = std::make_shared<StoringStage>();
    Rng rng(seed);
    KvPull pull = Start();
    const PullDone done = RunToTheEnd(pull, At(0), rng);
    ASSERT_TRUE(done.status.ok()) << done.status.ToString();
    EXPECT_EQ(done.transfer, TransferId(4));
    EXPECT_EQ(stage_->All(), source_.All());
    EXPECT_TRUE(done.activations);
    EXPECT_EQ(done.bytes, std::ssize(source_.All()) + kPullTokens * 8);
    EXPECT_GT(done.seconds, 0);
  }
  EXPECT_EQ(most_, kLimits.in_flight);
}

TEST_F(KvPullTest, WhatTheWorkerHoldsComesFirstAndIsNotCountedAsTransferred) {
  order_.sources[1].from.incarnation = Incarnation(1);
  KvPull pull = Start();
  Take(pull, At(0));
  for (const KvAsk& ask : asked_) EXPECT_EQ(ask.source->from.incarnation, Incarnation(1));
  Rng rng(1);
  const PullDone done = RunToTheEnd(pull, At(0), rng);
  EXPECT_TRUE(done.status.ok());
  EXPECT_EQ(done.bytes, std::ssize(source_.All()) / 3) << "two of six layers";
  EXPECT_EQ(stage_->All(), source_.All());
}

// The export message may arrive after the ask, but not for long.
TEST_F(KvPullTest, AnUnknownExportIsAskedForAgainForAWhile) {
  KvPull pull = Start();
  Take(pull, At(0));
  const size_t asks = asked_.size();
  while (!asked_.empty()) {
    pull.Answered(asked_.front().part, NotFound("no such KV"), {}, At(0.001));
    asked_.pop_front();
  }
  Take(pull, At(0.002));
  EXPECT_TRUE(asked_.empty()) << "not at once";
  EXPECT_EQ(*pull.NextTime(), At(0.003));
  Take(pull, At(0.003));
  EXPECT_EQ(asked_.size(), asks);
  pull.Answered(asked_.front().part, NotFound("no such KV"), {}, At(2.5));
  ASSERT_TRUE(pull.ended());
  EXPECT_EQ(pull.Done(At(2.5)).status.code(), StatusCode::kNotFound);
  EXPECT_EQ(stage_->writes, 0);
}

TEST_F(KvPullTest, AFailureEndsThePullAndLateAnswersAreDropped) {
  for (const Status& failure : {Unavailable("gone"), OkStatus()}) {
    stage_->writes = 0;
    asked_.clear();
    KvPull pull = Start();
    Take(pull, At(0));
    pull.Answered(asked_[0].part, failure, {}, At(0.1));  // OK, but without the bytes
    ASSERT_TRUE(pull.ended());
    EXPECT_EQ(pull.Done(At(0.1)).status.code(),
              failure.ok() ? StatusCode::kDataLoss : StatusCode::kUnavailable);
    EXPECT_FALSE(pull.NextAsk(At(0.1)));
    EXPECT_FALSE(pull.NextTime());
    Answer(pull, 1, At(0.2));
    EXPECT_EQ(stage_->writes, 0);
  }
}

TEST_F(KvPullTest, ASourceThatDoesNotAnswerEndsThePull) {
  KvPull pull = Start();
  Take(pull, At(0));
  Answer(pull, 1, At(1));
  EXPECT_EQ(*pull.NextTime(), At(0)) << "there is room for another ask";
  Take(pull, At(1));
  EXPECT_EQ(*pull.NextTime(), At(10));
  pull.Tick(At(9.9));
  EXPECT_FALSE(pull.ended());
  pull.Tick(At(10));
  ASSERT_TRUE(pull.ended());
  EXPECT_EQ(pull.Done(At(10)).status.code(), StatusCode::kDeadlineExceeded);
}

// Activations are optional: without them the layers after these compute again.
TEST_F(KvPullTest, WithoutActivationsThePullSucceeds) {
  order_.activations = PulledActivations::kAny;
  KvPull pull = Start();
  for (int answered = 0; !pull.ended(); ++answered) {
    ASSERT_LT(answered, 1000);
    Take(pull, At(0));
    const KvAsk ask = asked_.front();
    if (std::holds_alternative<KvBox>(ask.item)) {
      Answer(pull, 0, At(0));
    } else {
      pull.Answered(ask.part, FailedPrecondition("they are not cached"), {}, At(0));
    }
  }
  const PullDone done = pull.Done(At(1));
  EXPECT_TRUE(done.status.ok());
  EXPECT_FALSE(done.activations);
  EXPECT_EQ(stage_->All(), source_.All());
}

TEST_F(KvPullTest, ABackgroundPullAsksOnceAtATimeAndRestsAfterwards) {
  order_.background = true;
  KvPullLimits limits = kLimits;
  limits.rests = Duration::Millis(3);
  KvPull pull = Start(limits);
  // After an answer that took 0.5 ms the rest is three times as long, then at most 2 ms, then what
  // is left of all rests.
  double now = 0;
  for (const auto& [took_ms, rest_ms] : {std::pair(0.5, 1.5), {5.0, 1.5}, {5.0, 0.0}}) {
    Take(pull, At(now));
    ASSERT_EQ(asked_.size(), 1u);
    now += took_ms * 1e-3;
    Answer(pull, 0, At(now));
    EXPECT_NEAR((*pull.NextTime() - At(now)).millis(), rest_ms, 1e-3);
    now += rest_ms * 1e-3 + 1e-8;
  }
  Rng rng(1);
  EXPECT_TRUE(RunToTheEnd(pull, At(now), rng).status.ok());
  EXPECT_EQ(most_, 1u);
  EXPECT_EQ(stage_->All(), source_.All());
}

TEST_F(KvPullTest, WhatCannotBePulledFailsAtOnce) {
  stage_ = nullptr;
  EXPECT_EQ(Start().Done(At(0)).status.code(), StatusCode::kFailedPrecondition);
  stage_ = std::make_shared<StoringStage>();
  const PullKv order = order_;
  order_.sources.pop_back();
  EXPECT_EQ(Start().Done(At(0)).status.code(), StatusCode::kInvalidArgument) << "layers [2, 6)";
  order_ = order;
  order_.end_token = 0;
  for (const auto activations : {PulledActivations::kNone, PulledActivations::kAny}) {
    order_.activations = activations;
    EXPECT_TRUE(Start().Done(At(0)).status.ok()) << "nothing to pull";
  }
  order_ = order;
  KvPull cancelled = Start();
  cancelled.Cancel(Cancelled("the pipeline was closed"));
  EXPECT_EQ(cancelled.Done(At(0)).status.code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace millrace::cluster
