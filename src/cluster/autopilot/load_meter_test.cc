#include "cluster/autopilot/load_meter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace millrace::cluster {
namespace {

Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }

RequestOutput Token(uint64_t request, std::optional<FinishReason> finish = {}, int index = 0) {
  RequestOutput output;
  output.request = RequestId(request);
  output.index = index;
  output.tokens.push_back(1);
  output.finish = finish;
  if (finish) output.times.emplace();
  return output;
}

TEST(LoadMeter, RateLengthsAndVariationOfASpan) {
  LoadMeter meter({});
  for (int i = 0; i < 60; ++i) {
    meter.Arrived(RequestId(i + 1), i < 30 ? 100 : 300, At(0.5 * i));
    meter.Heard(Token(i + 1), At(0.5 * i));
    meter.Heard(Token(i + 1, FinishReason::kStop), At(0.5 * i + 0.1));
  }
  const MeasuredLoad load = meter.Load(At(15), At(30));
  EXPECT_EQ(load.requests, 30u);
  EXPECT_DOUBLE_EQ(load.requests_per_s, 2);
  EXPECT_DOUBLE_EQ(load.prompt_tokens, 300);
  EXPECT_DOUBLE_EQ(load.output_tokens, 2);
  EXPECT_NEAR(load.variation, 0, 1e-6) << "constant gaps";
  EXPECT_EQ(meter.Load(At(40), At(50)).requests, 0u);
  EXPECT_EQ(meter.Lengths(10).size(), 10u);
  EXPECT_EQ(meter.Lengths(10).back().prompt_tokens, 300);
}

TEST(LoadMeter, AVectorCountsAsAToken) {
  LoadMeter meter({});
  meter.Arrived(RequestId(1), 300, At(0));
  RequestOutput output;
  output.request = RequestId(1);
  output.pooled = {1};
  output.finish = FinishReason::kStop;
  output.times = RequestTimes{.arrived = At(0), .first_token = At(1), .last_token = At(1)};
  meter.Heard(output, At(1));
  EXPECT_DOUBLE_EQ(meter.Load(At(0), At(2)).output_tokens, 1);
}

TEST(LoadMeter, APoissonStreamHasVariationOne) {
  LoadMeter meter({});
  Rng rng(4);
  double at = 0;
  for (int i = 0; i < 2000; ++i) {
    at += -std::log(1 - rng.Uniform()) / 10;
    meter.Arrived(RequestId(i + 1), 1, At(at));
  }
  EXPECT_NEAR(meter.Load(At(0), At(at)).variation, 1, 0.1);
}

// The last output of a request that arrived at 0.
RequestOutput Last(uint64_t request, FinishReason finish, double first_s, double last_s,
                   int index = 0) {
  RequestOutput output = Token(request, finish, index);
  output.times =
      RequestTimes{.arrived = At(0), .first_token = At(first_s), .last_token = At(last_s)};
  return output;
}

TEST(LoadMeter, JudgesEachRequestByItsOwnTimes) {
  LoadMeter meter({.ttft_s = 1, .tpot_s = 0.1});
  const auto request = [&](uint64_t id, double ttft_s, double tpot_s, FinishReason end) {
    meter.Arrived(RequestId(id), 10, At(0));
    for (int i = 0; i < 3; ++i) meter.Heard(Token(id), At(ttft_s + i * tpot_s));
    const double last_s = ttft_s + 3 * tpot_s;
    meter.Heard(Last(id, end, ttft_s, last_s), At(last_s));
  };
  request(1, 0.5, 0.05, FinishReason::kLength);
  request(2, 1.5, 0.05, FinishReason::kStop);  // late
  request(3, 0.5, 0.2, FinishReason::kStop);   // slow
  request(4, 0.5, 0.2, FinishReason::kAbort);  // the client left
  request(5, 0.5, 0.01, FinishReason::kError);
  const MeasuredService service = meter.Service(At(0), At(10));
  EXPECT_EQ(service.answers, 4u);
  EXPECT_EQ(service.within, 1u);
  EXPECT_EQ(service.missed_ttft, 1u);
  EXPECT_EQ(service.missed_tpot, 1u);
  EXPECT_EQ(service.failed, 1u);
  EXPECT_DOUBLE_EQ(service.attainment(), 0.25);
  EXPECT_EQ(meter.running(), 0u);
}

TEST(LoadMeter, SequencesOfOneRequestShareItsTokens) {
  LoadMeter meter({.tpot_s = 0.15});
  meter.Arrived(RequestId(1), 10, At(0));
  for (int i = 0; i < 3; ++i) {
    meter.Heard(Token(1, {}, 0), At(1 + 0.1 * i));
    meter.Heard(i < 2 ? Token(1, {}, 1) : Last(1, FinishReason::kStop, 1, 1.2, 1), At(1 + 0.1 * i));
  }
  EXPECT_EQ(meter.Service(At(0), At(9)).within, 1u) << "0.1 s per token of a sequence";
  EXPECT_EQ(meter.Lengths(1).front().output_tokens, 3);
}

TEST(LoadMeter, LengthsAfterAShiftAreThoseOfTheRequestsSinceThen) {
  LoadMeter meter({});
  for (int i = 0; i < 60; ++i) {
    meter.Arrived(RequestId(i + 1), i < 40 ? 100 : 300, At(i));
    meter.Heard(Token(i + 1), At(i));
    if (i >= 40 && i % 2 == 0) continue;  // half of the new ones have no answer so far
    meter.Heard(Token(i + 1), At(i));
    meter.Heard(Last(i + 1, FinishReason::kStop, 0.1, 0.2), At(i + 0.5));
  }
  EXPECT_EQ(meter.Lengths(40).front().prompt_tokens, 100);
  const auto since = meter.Lengths(40, At(40));
  ASSERT_EQ(since.size(), 20u);
  for (const RequestLengths& lengths : since) {
    EXPECT_EQ(lengths.prompt_tokens, 300);
    EXPECT_EQ(lengths.output_tokens, 3);
  }
  EXPECT_EQ(meter.Lengths(10, At(40)).size(), 10u);
  EXPECT_EQ(meter.Lengths(10, At(20)).size(), 10u);
}

TEST(LoadMeter, TheLongestSilenceCountsOnlyWhileRequestsRun) {
  LoadMeter meter({});
  EXPECT_EQ(meter.TakeLongestSilence(At(5)), Duration{});
  meter.Arrived(RequestId(1), 1, At(10));
  meter.Heard(Token(1), At(11));
  meter.Heard(Token(1), At(14));
  meter.Heard(Token(1, FinishReason::kStop), At(15));
  EXPECT_EQ(meter.TakeLongestSilence(At(60)), Duration::Seconds(3));
  EXPECT_EQ(meter.TakeLongestSilence(At(90)), Duration{}) << "nothing runs";
}

TEST(LoadMeter, HoldsNoMoreThanItsLimits) {
  LoadMeter meter({});
  const auto many = static_cast<int>(LoadMeter::kRequestsMax) + 500;
  for (int i = 0; i < many; ++i) meter.Arrived(RequestId(i + 1), 1, At(1e-4 * i));
  EXPECT_EQ(meter.running(), LoadMeter::kRequestsMax);
  EXPECT_EQ(meter.Load(At(0), At(100)).requests, LoadMeter::kRequestsMax);
  meter.Arrived(RequestId(1'000'000), 1, At(10'000));
  EXPECT_EQ(meter.Load(At(0), At(10'000)).requests, 1u) << "the others are too old";
}

}  // namespace
}  // namespace millrace::cluster
