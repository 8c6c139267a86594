// StreamAnswers: collects the outputs of requests, by request and sequence, for tests of a
// Generator. Owned by the test. Sinks may be called from any thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "cluster/generator.h"

namespace millrace::cluster {

struct SequenceAnswer {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs, prompt_logprobs;
  std::vector<float> pooled;
  std::optional<FinishReason> finish;
  std::optional<TokenId> stop_token;
};

class StreamAnswers {
 public:
  struct One {
    std::vector<SequenceAnswer> sequences;
    Status error;
    bool over = false;
  };

  OutputSink Sink(size_t slot, int n) {
    MutexLock lock(mutex_);
    if (ones_.size() <= slot) ones_.resize(slot + 1);
    ones_[slot].sequences.resize(static_cast<size_t>(n));
    return [this, slot](RequestOutput&& output) { Take(slot, std::move(output)); };
  }

  bool WaitForTokens(int64_t count) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, kLimit,
                             [&]() MR_REQUIRES(mutex_) { return delivered_ >= count; });
  }
  bool WaitForAll() {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&]() MR_REQUIRES(mutex_) { return AllOver(); });
  }
  bool all_over() const {
    MutexLock lock(mutex_);
    return AllOver();
  }
  std::vector<One> ones() const {
    MutexLock lock(mutex_);
    return ones_;
  }

 private:
  static constexpr std::chrono::seconds kLimit{60};

  bool AllOver() const MR_REQUIRES(mutex_) {
    return std::ranges::all_of(ones_, [](const One& one) { return one.over; });
  }

  void Take(size_t slot, RequestOutput&& output) {
    MutexLock lock(mutex_);
    One& one = ones_[slot];
    SequenceAnswer& sequence = one.sequences[static_cast<size_t>(output.index)];
    EXPECT_FALSE(one.over) << "an output after the last one";
    EXPECT_TRUE(output.tokens.empty() || !sequence.finish) << "a token after the finish";
    sequence.tokens.insert(sequence.tokens.end(), output.tokens.begin(), output.tokens.end());
    std::ranges::move(output.logprobs, std::back_inserter(sequence.logprobs));
    std::ranges::move(output.prompt_logprobs, std::back_inserter(sequence.prompt_logprobs));
    if (!output.pooled.empty()) sequence.pooled = std::move(output.pooled);
    if (output.finish) sequence.finish = output.finish;
    if (output.stop_token) sequence.stop_token = output.stop_token;
    if (!output.error.ok()) one.error = output.error;
    if (output.times) one.over = true;
    delivered_ += std::ssize(output.tokens);
    changed_.notify_all();
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<One> ones_ MR_GUARDED_BY(mutex_);
  int64_t delivered_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::cluster
