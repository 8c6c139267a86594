#include "sim/record/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace millrace::sim {
namespace {

double Exact(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

TEST(QuantilesTest, StaysWithinItsErrorOfTheExactOnes) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Rng rng(seed);
    Quantiles quantiles, odd, even;
    std::vector<double> values;
    for (int i = 0; i < 5000; ++i) {
      const double value = std::exp(rng.Uniform() * 20 - 12);  // over nine powers of ten
      values.push_back(value);
      quantiles.Add(value);
      (i % 2 == 0 ? even : odd).Add(value);
    }
    even.Merge(odd);
    EXPECT_EQ(even.count(), 5000u);
    for (const double q : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      const double exact = Exact(values, q);
      EXPECT_NEAR(quantiles.At(q), exact, exact * Quantiles::kRelativeError * 1.01) << q;
      EXPECT_EQ(even.At(q), quantiles.At(q)) << q;
      const double share = quantiles.ShareAtMost(exact * (1 + 2 * Quantiles::kRelativeError));
      EXPECT_GE(share, q) << q;
    }
    EXPECT_EQ(quantiles.max(), *std::max_element(values.begin(), values.end()));
    EXPECT_EQ(quantiles.min(), *std::min_element(values.begin(), values.end()));
  }
}

TEST(QuantilesTest, AnswersForNothingAndForZeros) {
  Quantiles none;
  EXPECT_EQ(none.At(0.5), 0);
  EXPECT_EQ(none.ShareAtMost(1), 0);
  Quantiles zeros;
  zeros.Add(0);
  zeros.Add(0);
  EXPECT_EQ(zeros.At(0.99), 0);
  EXPECT_EQ(zeros.ShareAtMost(0), 1);
}

RequestOutput Tokens(RequestId id, int count, bool last) {
  RequestOutput output{.request = id};
  for (int i = 0; i < count; ++i) output.tokens.push_back(0);
  if (last) output.finish = FinishReason::kLength;
  return output;
}

Time Ms(int64_t ms) { return Time{} + Duration::Millis(ms); }

TEST(RecorderTest, MeasuresWhatAClientWould) {
  Recorder recorder({.ttft_s = 0.1, .tpot_s = 0.05});
  const RequestId a = recorder.Arrived({Ms(1000), 50, 3});
  const RequestId b = recorder.Arrived({Ms(1010), 20, 1});
  const RequestId c = recorder.Arrived({Ms(1020), 5, 5});
  EXPECT_EQ(recorder.waiting(), 3u);
  recorder.Refused(c);
  EXPECT_FALSE(recorder.Heard(Tokens(a, 1, false), Ms(1080)));  // TTFT 80 ms: met
  EXPECT_EQ(recorder.waiting(), 1u);
  EXPECT_TRUE(recorder.Heard(Tokens(b, 1, true), Ms(1210)));  // TTFT 200 ms: missed
  EXPECT_FALSE(recorder.Heard(Tokens(a, 1, false), Ms(1100)));
  EXPECT_TRUE(recorder.Heard(Tokens(a, 1, true), Ms(1220)));  // gaps 20, 120: TPOT 70, missed
  EXPECT_EQ(recorder.alive(), 0u);
  EXPECT_EQ(recorder.waiting(), 0u);
  const LatencyReport& r = recorder.report();
  EXPECT_EQ(r.requests, 2u);
  EXPECT_EQ(r.refused, 1u);
  EXPECT_EQ(r.output_tokens, 4u);
  EXPECT_EQ(r.prompt_tokens, 70u);
  EXPECT_DOUBLE_EQ(r.ttft.mean(), 0.14);
  EXPECT_DOUBLE_EQ(r.tpot.mean(), 0.07);
  EXPECT_EQ(r.tpot.count(), 1u);  // one token has no gap
  EXPECT_EQ(r.itl.count(), 2u);
  EXPECT_DOUBLE_EQ(r.max_gap.max(), 0.12);
  EXPECT_DOUBLE_EQ(r.e2e.mean(), 0.21);
  EXPECT_DOUBLE_EQ(r.per_token.max(), 0.2);
  EXPECT_EQ(r.met_ttft, 1u);
  EXPECT_EQ(r.met_tpot, 1u);
  EXPECT_EQ(r.met_both, 0u);
  EXPECT_DOUBLE_EQ(r.seconds(), 0.22);
}

TEST(RecorderTest, RunsAddUp) {
  Recorder one({}), two({});
  for (Recorder* recorder : {&one, &two, &two}) {
    recorder->Heard(Tokens(recorder->Arrived({Ms(100), 10, 2}), 2, true), Ms(300));
  }
  LatencyReport sum = one.report();
  sum.Merge(two.report());
  EXPECT_EQ(sum.requests, 3u);
  EXPECT_EQ(sum.output_tokens, 6u);
  EXPECT_EQ(sum.met_both, 3u);
  EXPECT_EQ(sum.ttft.count(), 3u);
  EXPECT_DOUBLE_EQ(sum.seconds(), 0.4);
}

}  // namespace
}  // namespace millrace::sim
