// The device mapper: the published weights, brute force, greed, staying in place.
#include "experiments/lib/spotserve/mapping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "base/rng.h"

namespace millrace::experiments::spotserve {
namespace {

constexpr int kLayers = 48;

ModelBytes Llama() { return ModelBytes::Transformer(kLayers, 7168, 50304, 2048, 4); }

// `count` machines of `per` devices that hold `config` in order; the rest is empty.
std::vector<Instance> Machines(int count, int per, const ParallelConfig& config,
                               int layers = kLayers) {
  std::vector<Instance> instances(count);
  int rank = 0;
  for (Instance& instance : instances) {
    for (int i = 0; i < per; ++i, ++rank) {
      instance.devices.emplace_back();
      if (rank >= config.devices()) continue;
      const Position at{rank / (config.pipeline * config.tensor),
                        rank / config.tensor % config.pipeline, rank % config.tensor};
      instance.devices.back() = Holding{at, SliceOf(layers, config, at)};
    }
  }
  return instances;
}

void ExpectEachPositionOnce(const Mapping& mapping, const MapRequest& request) {
  std::set<Position> seen;
  for (size_t i = 0; i < mapping.positions.size(); ++i) {
    for (const auto& at : mapping.positions[i]) {
      if (!at.has_value()) continue;
      EXPECT_FALSE(request.instances[i].leaving) << i;
      EXPECT_TRUE(seen.insert(*at).second) << "taken twice";
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), request.config.devices());
}

int64_t Reused(const MapRequest& request, const Mapping& mapping) {
  int64_t total = 0;
  for (size_t i = 0; i < mapping.positions.size(); ++i) {
    for (size_t k = 0; k < mapping.positions[i].size(); ++k) {
      const auto& held = request.instances[i].devices[k];
      const auto& at = mapping.positions[i][k];
      if (held.has_value() && at.has_value()) total += ReusableBytes(request, *held, *at);
    }
  }
  return total;
}

// The released code's weight in units of h floats, without the terms that every pair gets. It
// counts only one of the two halves of the KV.
TEST(SpotMappingTest, WeightsAreThePublishedOnes) {
  const int h = 7168, vocabulary = 50304, kv_tokens = 4 * 640;
  const ParallelConfig before{2, 2, 8, 4}, after{1, 3, 4, 4};
  MapRequest request{.config = after, .bytes = Llama()};
  request.bytes.kv_bytes_per_token_layer = h * 4;
  request.inherits = {1};
  request.kv_tokens = {0, kv_tokens};
  for (int d = 0; d < 2; ++d) {
    for (int p = 0; p < 2; ++p) {
      for (int m = 0; m < 8; ++m) {
        for (int q = 0; q < 3; ++q) {
          for (int n = 0; n < 4; ++n) {
            const double layers =
                std::max(0, std::min((p + 1) * 24, (q + 1) * 16) - std::max(p * 24, q * 16));
            const double shard =
                std::max(0.0, std::min((m + 1) / 8.0, (n + 1) / 4.0) - std::max(m / 8.0, n / 4.0));
            const double kv = d == 1 ? kv_tokens : 0;
            const double weight = layers * (6 + (12.0 * h + 7 + kv) * shard) +
                                  (p == 1 && q == 2 ? vocabulary + 2 : 0) + vocabulary + 2048;
            const Position held{d, p, m};
            const int64_t got =
                ReusableBytes(request, {held, SliceOf(kLayers, before, held)}, {0, q, n});
            EXPECT_NEAR(static_cast<double>(got) / (h * 4.0), weight, weight * 1e-9 + 0.01);
          }
        }
      }
    }
  }
}

TEST(SpotMappingTest, NothingMovesWhenNothingChanges) {
  const ParallelConfig config{3, 2, 8, 4};
  MapRequest request{.config = config, .bytes = Llama(), .instances = Machines(14, 4, config)};
  const auto mapping = MapDevices(request);
  ASSERT_TRUE(mapping.ok()) << mapping.status().ToString();
  for (size_t i = 0; i < request.instances.size(); ++i) {
    for (int k = 0; k < 4; ++k) {
      const auto& held = request.instances[i].devices[k];
      const auto& at = mapping->positions[i][k];
      EXPECT_EQ(at.has_value(), held.has_value()) << i << "." << k;
      if (held.has_value() && at.has_value()) {
        EXPECT_TRUE(*at == held->position) << i << "." << k;
      }
    }
  }
}

// One machine of pipeline 1 leaves; the spare takes exactly its positions.
TEST(SpotMappingTest, ASpareReplacesTheOneThatLeaves) {
  const ParallelConfig config{2, 3, 4, 4};
  MapRequest request{.config = config, .bytes = Llama(), .instances = Machines(7, 4, config)};
  request.instances[4].leaving = true;
  const auto mapping = MapDevices(request);
  ASSERT_TRUE(mapping.ok());
  ExpectEachPositionOnce(*mapping, request);
  for (int i : {0, 1, 2, 3, 5}) {
    EXPECT_TRUE(*mapping->positions[i][0] == request.instances[i].devices[0]->position) << i;
  }
  EXPECT_TRUE((*mapping->positions[6][2] == Position{1, 1, 2}));
}

MapRequest RandomRequest(Rng& rng, int devices_per_instance, int data, int pipeline, int tensor) {
  const ParallelConfig after{data, pipeline, tensor, 4};
  const ParallelConfig before{static_cast<int>(rng.Between(1, 3)),
                              static_cast<int>(rng.Between(1, 3)), 1 << rng.Between(0, 2), 4};
  MapRequest request{.config = after, .bytes = Llama()};
  const int needed = (after.devices() + devices_per_instance - 1) / devices_per_instance;
  const int count = needed + static_cast<int>(rng.Between(0, 1));
  request.instances = Machines(count, devices_per_instance, before);
  for (size_t i = request.instances.size(); i > 1; --i) {
    std::swap(request.instances[i - 1], request.instances[rng.Next() % i]);
  }
  std::vector<RunningBatch> batches;
  for (int d = 0; d < before.data; ++d) {
    request.kv_tokens.push_back(rng.Between(0, 2600));
    if (rng.Uniform() < 0.7) batches.push_back({d, static_cast<int>(rng.Between(0, 128))});
  }
  request.inherits = InheritBatches(batches, data);
  return request;
}

// Tries every assignment of device blocks to tensor groups, and of devices to shards within.
int64_t BestByHand(const MapRequest& request, int group) {
  const ParallelConfig& c = request.config;
  std::vector<std::vector<std::optional<Holding>>> blocks;
  for (const Instance& instance : request.instances) {
    for (size_t i = 0; i < instance.devices.size(); i += group) {
      blocks.emplace_back(instance.devices.begin() + i, instance.devices.begin() + i + group);
    }
  }
  std::vector<Position> groups;
  for (int d = 0; d < c.data; ++d) {
    for (int p = 0; p < c.pipeline; ++p) {
      for (int m = 0; m < c.tensor; m += group) groups.push_back({d, p, m});
    }
  }
  const auto inner = [&](const auto& block, const Position& at) {
    std::vector<int> shard(group);
    std::iota(shard.begin(), shard.end(), 0);
    int64_t best = 0;
    do {
      int64_t total = 0;
      for (int i = 0; i < group; ++i) {
        if (!block[i].has_value()) continue;
        total += ReusableBytes(request, *block[i], {at.data, at.stage, at.shard + shard[i]});
      }
      best = std::max(best, total);
    } while (std::next_permutation(shard.begin(), shard.end()));
    return best;
  };
  std::vector<int> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t best = 0;
  do {
    int64_t total = 0;
    for (size_t j = 0; j < groups.size(); ++j) total += inner(blocks[order[j]], groups[j]);
    best = std::max(best, total);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(SpotMappingTest, EqualsBruteForce) {
  const struct {
    int per, data, pipeline, tensor;
  } kShapes[] = {{1, 2, 3, 1}, {1, 1, 5, 1}, {2, 2, 2, 2}, {4, 1, 3, 4},
                 {2, 1, 2, 4}, {4, 2, 1, 4}, {2, 1, 2, 1}, {4, 2, 2, 2}};
  for (uint64_t seed = 0; seed < 160; ++seed) {
    Rng rng(seed);
    const auto& shape = kShapes[seed % std::size(kShapes)];
    const MapRequest request =
        RandomRequest(rng, shape.per, shape.data, shape.pipeline, shape.tensor);
    const auto mapping = MapDevices(request);
    ASSERT_TRUE(mapping.ok()) << mapping.status().ToString();
    ExpectEachPositionOnce(*mapping, request);
    ASSERT_EQ(mapping->reused_bytes, Reused(request, *mapping)) << seed;
    ASSERT_EQ(mapping->reused_bytes, BestByHand(request, std::min(shape.per, shape.tensor)))
        << seed;
  }
}

// Tensor groups are inside one machine or cover whole machines.
TEST(SpotMappingTest, RespectsInstanceBoundaries) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const int tensor = 1 << rng.Between(0, 3);
    const MapRequest request = RandomRequest(rng, 4, static_cast<int>(rng.Between(1, 4)),
                                             static_cast<int>(rng.Between(1, 4)), tensor);
    const auto mapping = MapDevices(request);
    ASSERT_TRUE(mapping.ok());
    ExpectEachPositionOnce(*mapping, request);
    std::set<std::tuple<int, int, int>> machines_of_group;
    for (size_t i = 0; i < mapping->positions.size(); ++i) {
      for (const auto& at : mapping->positions[i]) {
        if (at.has_value()) machines_of_group.insert({at->data, at->stage, static_cast<int>(i)});
      }
    }
    const int groups = request.config.data * request.config.pipeline;
    EXPECT_EQ(static_cast<int>(machines_of_group.size()), groups * std::max(1, tensor / 4));
  }
}

TEST(SpotMappingTest, NeverWorseThanGreed) {
  int better = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const MapRequest request = RandomRequest(rng, 1, static_cast<int>(rng.Between(1, 4)),
                                             static_cast<int>(rng.Between(1, 4)), 1);
    std::vector<std::tuple<int64_t, size_t, Position>> pairs;
    for (size_t i = 0; i < request.instances.size(); ++i) {
      if (!request.instances[i].devices[0].has_value()) continue;
      for (int d = 0; d < request.config.data; ++d) {
        for (int p = 0; p < request.config.pipeline; ++p) {
          const Position at{d, p, 0};
          pairs.push_back({-ReusableBytes(request, *request.instances[i].devices[0], at), i, at});
        }
      }
    }
    std::sort(pairs.begin(), pairs.end());
    std::set<size_t> devices;
    std::set<Position> places;
    int64_t greedy = 0;
    for (const auto& [negative, i, at] : pairs) {
      if (devices.contains(i) || places.contains(at)) continue;
      devices.insert(i);
      places.insert(at);
      greedy -= negative;
    }
    const auto mapping = MapDevices(request);
    ASSERT_TRUE(mapping.ok());
    EXPECT_GE(mapping->reused_bytes, greedy) << seed;
    better += mapping->reused_bytes > greedy;
  }
  EXPECT_GT(better, 5) << "the greedy mapping must lose somewhere, or the test shows nothing";
}

TEST(SpotMappingTest, InheritsByProgress) {
  EXPECT_EQ(InheritBatches({{0, 10}, {1, 90}, {2, 50}}, 2), (Inheritance{2, 1}));
  EXPECT_EQ(InheritBatches({{0, 10}, {2, 50}}, 3), (Inheritance{0, std::nullopt, 2}));
  EXPECT_EQ(InheritBatches({{1, 5}, {0, 5}}, 1), (Inheritance{1}))
      << "on a tie, the first one given stays";
  EXPECT_EQ(InheritBatches({}, 2), (Inheritance{std::nullopt, std::nullopt}));
}

TEST(SpotMappingTest, SaysWhatDoesNotFit) {
  MapRequest request{.config = {1, 2, 8, 4}, .bytes = Llama(), .instances = Machines(3, 4, {})};
  EXPECT_EQ(MapDevices(request).status().message(), "(1,2,8,4) needs 16 devices, 12 stay");
  request.instances = Machines(6, 3, {});
  EXPECT_EQ(MapDevices(request).status().message(),
            "tensor degree 8 does not fit instances of 3 devices");
  request.instances[1].devices.pop_back();
  EXPECT_EQ(MapDevices(request).status().message(),
            "instances must have the same number of devices, got 2 and 3");
}

TEST(SpotMappingTest, TwoHundredFiftySixDevicesUnderASecond) {
  const ParallelConfig before{16, 4, 4, 4}, after{8, 4, 8, 4};
  MapRequest request{.config = after, .bytes = Llama(), .instances = Machines(64, 4, before)};
  const auto start = std::chrono::steady_clock::now();
  const auto mapping = MapDevices(request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(mapping.ok());
  ExpectEachPositionOnce(*mapping, request);
#ifndef MILLRACE_SANITIZED
  EXPECT_LT(took.count(), 1);
#endif
}

}  // namespace
}  // namespace millrace::experiments::spotserve
