// Which layers a request has to compute again, given the KV and activations that were fetched.
#include "cluster/control/kv_under_way.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

FetchedLayers Have(std::vector<bool> kv, std::set<int> activations) {
  return {std::move(kv), std::move(activations)};
}

TEST(FetchedLayers, LayersWithoutKvComputeFromTheActivationsThatEnterThem) {
  EXPECT_EQ(Have({1, 1, 1, 1, 1, 1}, {}).Lacking(), LayerRange());
  EXPECT_EQ(Have({1, 1, 0, 0, 1, 1}, {2}).Lacking(), (LayerRange{2, 4}));
  EXPECT_EQ(Have({0, 0, 1, 1, 1, 1}, {2, 4}).Lacking(), (LayerRange{0, 2})) << "from the tokens";
  EXPECT_EQ(Have({1, 1, 0, 1, 0, 1}, {2, 4}).Lacking(), (LayerRange{2, 5})) << "as one range";
  EXPECT_EQ(Have({0, 0, 0, 0, 0, 0}, {}).Lacking(), (LayerRange{0, 6}));
}

TEST(FetchedLayers, WithoutActivationsTheRangeBeginsEarlier) {
  EXPECT_EQ(Have({1, 1, 1, 1, 0, 0}, {2}).Lacking(), (LayerRange{2, 6}));
  EXPECT_EQ(Have({1, 1, 1, 1, 0, 0}, {5}).Lacking(), (LayerRange{0, 6}));
}

// If one sequence of a request lacks activations of a layer, no sequence begins there.
TEST(FetchedLayers, SequencesComputeAtTheSameLayers) {
  FetchedLayers all = Have({1, 1, 0, 0, 0, 1}, {1, 2});
  all.KeepCommon(Have({1, 1, 1, 0, 0, 1}, {1, 3}));
  EXPECT_EQ(all.Lacking(), (LayerRange{1, 5}));
  all.KeepCommon(Have({1, 1, 1, 1, 1, 0}, {5}));
  EXPECT_EQ(all.Lacking(), (LayerRange{0, 6}));
}

}  // namespace
}  // namespace millrace::cluster
