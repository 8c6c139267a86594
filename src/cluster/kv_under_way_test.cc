// What a request's sequences find of the KV they left, and what is to be computed of it.
#include "cluster/kv_under_way.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

FetchedLayers Have(std::vector<bool> kv, std::set<int> activations) {
  return {std::move(kv), std::move(activations)};
}

TEST(FetchedLayers, WhatLacksKvComputesFromTheRowsThatEnterIt) {
  EXPECT_EQ(Have({1, 1, 1, 1, 1, 1}, {}).Lacking(), LayerRange());
  EXPECT_EQ(Have({1, 1, 0, 0, 1, 1}, {2}).Lacking(), (LayerRange{2, 4}));
  EXPECT_EQ(Have({0, 0, 1, 1, 1, 1}, {2, 4}).Lacking(), (LayerRange{0, 2})) << "from the tokens";
  EXPECT_EQ(Have({1, 1, 0, 1, 0, 1}, {2, 4}).Lacking(), (LayerRange{2, 5})) << "in one go";
  EXPECT_EQ(Have({0, 0, 0, 0, 0, 0}, {}).Lacking(), (LayerRange{0, 6}));
}

TEST(FetchedLayers, WithoutRowsItBeginsFurtherUp) {
  EXPECT_EQ(Have({1, 1, 1, 1, 0, 0}, {2}).Lacking(), (LayerRange{2, 6}));
  EXPECT_EQ(Have({1, 1, 1, 1, 0, 0}, {5}).Lacking(), (LayerRange{0, 6}));
}

// One sequence of a request lacks its activations: none of them begins where it cannot.
TEST(FetchedLayers, SequencesComputeAtTheSameLayers) {
  FetchedLayers all = Have({1, 1, 0, 0, 0, 1}, {1, 2});
  all.KeepCommon(Have({1, 1, 1, 0, 0, 1}, {1, 3}));
  EXPECT_EQ(all.Lacking(), (LayerRange{1, 5}));
  all.KeepCommon(Have({1, 1, 1, 1, 1, 0}, {5}));
  EXPECT_EQ(all.Lacking(), (LayerRange{0, 6}));
}

}  // namespace
}  // namespace millrace::cluster
