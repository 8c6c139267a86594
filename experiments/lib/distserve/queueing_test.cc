#include "experiments/lib/distserve/queueing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace millrace::experiments::distserve {
namespace {

// The closed forms as printed in section 3.1.
TEST(Queueing, FormulasOfThePaper) {
  const double r = 6, d = 0.1, k = 1.6;
  EXPECT_NEAR(*Md1MeanTtft({r, d}), d + r * d * d / (2 * (1 - r * d)), 1e-12);
  EXPECT_NEAR(*Md1InterOpTtft({r, d}, 2), d + r * d * d / (4 * (2 - r * d)), 1e-12);
  EXPECT_NEAR(*Md1IntraOpTtft({r, d}, k), d / k + r * d * d / (2 * k * (k - r * d)), 1e-12);
  EXPECT_NEAR(*Md1ReplicatedTtft({r, d}, 3), *Md1MeanTtft({r / 3, d}), 1e-12);
  EXPECT_NEAR(*Md1InterOpTtft({r, d}, 4), d + r * d * d / (2 * 4 * (4 - r * d)), 1e-12);
}

TEST(Queueing, NoAnswerWhenTheQueueGrows) {
  EXPECT_FALSE(Md1MeanTtft({10, 0.1}));
  EXPECT_TRUE(Md1InterOpTtft({10, 0.1}, 2));
  EXPECT_FALSE(Md1InterOpTtft({20, 0.1}, 2));
  EXPECT_FALSE(Md1IntraOpTtft({16, 0.1}, 1.6));
}

// Loads above which the pipeline beats the split, from the closed forms.
TEST(Queueing, CrossoverTable) {
  const double table[][2] = {{1.3, 0.611}, {1.486, 0.914}, {1.6, 1.095},
                             {1.7, 1.257}, {1.81, 1.447},  {1.9, 1.626}};
  for (const auto& [k, load] : table) {
    ASSERT_TRUE(InterOpCrossover(k)) << k;
    EXPECT_NEAR(*InterOpCrossover(k), load, 6e-4) << k;
  }
  EXPECT_FALSE(InterOpCrossover(2)) << "a perfect split is never worse";
}

// Compares the closed forms with a simulated queue.
TEST(Queueing, AgreesWithASimulatedQueue) {
  for (const double load : {0.3, 0.6, 0.9}) {
    Rng rng(7);
    double arrival = 0, free_at = 0, sum = 0;
    constexpr int kRequests = 400'000;
    for (int i = 0; i < kRequests; ++i) {
      arrival += -std::log(1 - rng.Uniform()) / load;
      free_at = std::max(free_at, arrival) + 1;
      sum += free_at - arrival;
    }
    const double expected = *Md1MeanTtft({load, 1});
    EXPECT_NEAR(sum / kRequests / expected, 1, 0.03) << load;
  }
}

}  // namespace
}  // namespace millrace::experiments::distserve
