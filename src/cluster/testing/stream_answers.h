// StreamAnswers: what requests were told, by request and sequence, for tests of whatever is a
// Generator. Sinks are called from any thread; everything else is the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/generator.h"

namespace millrace::cluster {

struct SequenceAnswer {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs, prompt_logprobs;
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

  engine::OutputSink Sink(size_t slot, int n) {
    std::lock_guard lock(mutex_);
    if (ones_.size() <= slot) ones_.resize(slot + 1);
    ones_[slot].sequences.resize(static_cast<size_t>(n));
    return [this, slot](RequestOutput&& news) { Take(slot, std::move(news)); };
  }

  bool WaitForTokens(int64_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return told_ >= count; });
  }
  bool WaitForAll() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return AllOver(); });
  }
  bool all_over() const {
    std::lock_guard lock(mutex_);
    return AllOver();
  }
  std::vector<One> ones() const {
    std::lock_guard lock(mutex_);
    return ones_;
  }

 private:
  static constexpr std::chrono::seconds kLimit{60};

  bool AllOver() const {
    return std::ranges::all_of(ones_, [](const One& one) { return one.over; });
  }

  void Take(size_t slot, RequestOutput&& news) {
    std::lock_guard lock(mutex_);
    One& one = ones_[slot];
    SequenceAnswer& sequence = one.sequences[static_cast<size_t>(news.index)];
    EXPECT_FALSE(one.over) << "news after the last";
    EXPECT_TRUE(news.tokens.empty() || !sequence.finish) << "a token after the end";
    sequence.tokens.insert(sequence.tokens.end(), news.tokens.begin(), news.tokens.end());
    std::ranges::move(news.logprobs, std::back_inserter(sequence.logprobs));
    std::ranges::move(news.prompt_logprobs, std::back_inserter(sequence.prompt_logprobs));
    if (news.finish) sequence.finish = news.finish;
    if (news.stop_token) sequence.stop_token = news.stop_token;
    if (!news.error.ok()) one.error = news.error;
    if (news.times) one.over = true;
    told_ += std::ssize(news.tokens);
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<One> ones_;
  int64_t told_ = 0;
};

}  // namespace millrace::cluster
