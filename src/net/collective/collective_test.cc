#include "net/collective/collective.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "net/collective/pairwise_sum.h"
#include "net/collective/same_host_collective.h"
#include "net/collective/testing_meeting.h"
#include "net/testing/in_process_collective.h"

namespace millrace::net {
namespace {

using Group = std::vector<std::unique_ptr<Collective>>;

// Runs one thread per rank; returns each one's result.
template <typename F>
auto OnEveryRank(int size, F&& f) {
  std::vector<decltype(f(0))> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { results[static_cast<size_t>(r)] = f(r); });
  }
  for (std::thread& t : threads) t.join();
  return results;
}

struct Kind {
  const char* name;
  Group (*make)(int size, Duration deadline, size_t slot_floats);
};

Group InProcess(int size, Duration deadline, size_t slot_floats) {
  return std::move(*NewInProcessCollectives(size, deadline, slot_floats));
}

Group SameHost(int size, Duration deadline, size_t slot_floats) {
  const std::string meeting = NewMeeting();
  return OnEveryRank(size, [&](int rank) -> std::unique_ptr<Collective> {
    auto joined = JoinSameHost({.rank = rank,
                                .size = size,
                                .meeting = meeting,
                                .incarnation = 7,
                                .deadline = deadline,
                                .slot_floats = slot_floats});
    EXPECT_TRUE(joined.ok()) << joined.status().ToString();
    return joined.ok() ? std::move(*joined) : nullptr;
  });
}

// Values whose sums have different bits in different orders.
std::vector<std::vector<float>> RandomParts(int size, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<float>> parts(static_cast<size_t>(size), std::vector<float>(count));
  for (auto& part : parts) {
    for (float& v : part) {
      v = std::ldexp(static_cast<float>(random()) / 4e9f - 0.5f, static_cast<int>(random() % 24));
    }
  }
  return parts;
}

float TreeSum(const std::vector<std::vector<float>>& parts, size_t i, size_t first, size_t count) {
  if (count == 1) return parts[first][i];
  const float left = TreeSum(parts, i, first, count / 2);
  const float right = TreeSum(parts, i, first + count / 2, count / 2);
  return left + right;
}

std::vector<float> Reference(const std::vector<std::vector<float>>& parts) {
  std::vector<float> sum(parts[0].size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = TreeSum(parts, i, 0, parts.size());
  return sum;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(PairwiseSum, AddsAsATree) {
  for (int size : {1, 2, 4, 8}) {
    for (size_t count : {0u, 1u, 255u, 256u, 257u, 1000u}) {
      auto parts = RandomParts(size, count, 5);
      const std::vector<float> expected = count == 0 ? std::vector<float>() : Reference(parts);
      std::vector<const float*> pointers;
      for (auto& part : parts) pointers.push_back(part.data());
      PairwiseSum(pointers, count, parts.back().data());  // in place
      EXPECT_TRUE(SameBits(parts.back(), expected)) << size << " " << count;
    }
  }
}

// Otherwise the tests below could not detect a wrong order.
TEST(PairwiseSum, DiffersFromARunningSum) {
  const auto parts = RandomParts(8, 1000, 5);
  std::vector<float> running(1000, 0.0f);
  for (const auto& part : parts) {
    for (size_t i = 0; i < running.size(); ++i) running[i] += part[i];
  }
  EXPECT_FALSE(SameBits(running, Reference(parts)));
}

class Collectives : public testing::TestWithParam<Kind> {};

TEST_P(Collectives, AddPairwiseByRank) {
  constexpr size_t kSlot = 5000;
  for (int size : {1, 2, 4, 8}) {
    Group group = GetParam().make(size, kCollectiveDeadline, kSlot);
    // Less than a slot, whole slots, more; small ones between large ones.
    const std::vector<size_t> counts = {1, 3, 5000, 0, 17, 10000, 4096, 12345, 2, 1};
    std::vector<std::vector<std::vector<float>>> parts;
    for (size_t c : counts) parts.push_back(RandomParts(size, c, static_cast<uint32_t>(c)));
    const auto sums = OnEveryRank(size, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      EXPECT_EQ(group[r]->rank(), rank);
      EXPECT_EQ(group[r]->size(), size);
      std::vector<std::vector<float>> mine;
      for (const auto& of_ranks : parts) {
        mine.push_back(of_ranks[r]);
        const Status added = group[r]->AllReduceSum(mine.back());
        EXPECT_TRUE(added.ok()) << added.ToString();
      }
      return mine;
    });
    for (size_t c = 0; c < counts.size(); ++c) {
      const auto expected = Reference(parts[c]);
      for (const auto& mine : sums) EXPECT_TRUE(SameBits(mine[c], expected)) << size << " " << c;
    }
  }
}

// The slots are reused many times by ranks that are sometimes late.
TEST_P(Collectives, KeepManyCallsApartWhenRanksAreUneven) {
  constexpr int kSize = 4, kCalls = 2000;
  Group group = GetParam().make(kSize, kCollectiveDeadline, 64);
  const auto wrong = OnEveryRank(kSize, [&](int rank) {
    std::mt19937 random(static_cast<uint32_t>(rank));
    int bad = 0;
    std::vector<float> values(100);
    for (int call = 0; call < kCalls; ++call) {
      for (float& v : values) v = static_cast<float>(call + rank);
      if (random() % 512 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      if (!group[static_cast<size_t>(rank)]->AllReduceSum(values).ok()) return kCalls;
      for (float v : values) bad += v != static_cast<float>(4 * call + 6);
    }
    return bad;
  });
  EXPECT_EQ(wrong, std::vector<int>(kSize, 0));
}

TEST_P(Collectives, AMissingRankIsAnErrorAtTheDeadline) {
  constexpr int kSize = 4;
  constexpr Duration kDeadline = Duration::Millis(200);
  Group group = GetParam().make(kSize, kDeadline, 64);
  const auto statuses = OnEveryRank(kSize, [&](int rank) {
    if (rank == 2) return OkStatus();
    std::vector<float> values(10, 1.0f);
    const Time begin = SteadyClock().Now();
    Status status = group[static_cast<size_t>(rank)]->AllReduceSum(values);
    // The rank that began first ends the call for all.
    EXPECT_LT((SteadyClock().Now() - begin).seconds(), 20) << rank;
    return status;
  });
  for (int rank : {0, 1, 3}) {
    EXPECT_EQ(statuses[static_cast<size_t>(rank)].code(), StatusCode::kUnavailable)
        << statuses[static_cast<size_t>(rank)].ToString();
  }
  // Permanently, also for the late rank.
  std::vector<float> values(10, 1.0f);
  for (auto& collective : group) {
    EXPECT_EQ(collective->AllReduceSum(values).code(), StatusCode::kUnavailable);
  }
}

TEST_P(Collectives, AbortEndsTheWaitOfAll) {
  constexpr int kSize = 4;
  Group group = GetParam().make(kSize, Duration::Seconds(300), 64);
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group[1]->Abort("the stage is unloaded");
  });
  const auto statuses = OnEveryRank(kSize, [&](int rank) {
    std::vector<float> values(10, 1.0f);
    return rank == 3 ? OkStatus() : group[static_cast<size_t>(rank)]->AllReduceSum(values);
  });
  aborter.join();
  for (int rank : {0, 1, 2}) {
    EXPECT_EQ(statuses[static_cast<size_t>(rank)].code(), StatusCode::kUnavailable) << rank;
  }
  EXPECT_NE(statuses[1].message().find("the stage is unloaded"), std::string::npos);
  EXPECT_NE(statuses[0].message().find("rank 1"), std::string::npos) << statuses[0].message();
  std::vector<float> values(10, 1.0f);
  EXPECT_FALSE(group[3]->AllReduceSum(values).ok());
}

TEST_P(Collectives, ARankThatLeavesIsAnErrorForTheOthers) {
  Group group = GetParam().make(2, Duration::Seconds(300), 64);
  const auto statuses = OnEveryRank(2, [&](int rank) {
    std::vector<float> values(10, 1.0f);
    Status first = group[static_cast<size_t>(rank)]->AllReduceSum(values);
    if (rank == 1) {
      group[1] = nullptr;
      return first;
    }
    EXPECT_TRUE(first.ok());  // it left after completing its part
    return group[0]->AllReduceSum(values);
  });
  EXPECT_TRUE(statuses[1].ok());
  EXPECT_EQ(statuses[0].code(), StatusCode::kUnavailable) << statuses[0].ToString();
}

TEST_P(Collectives, CallsOfDifferentSizesAreAnError) {
  Group group = GetParam().make(2, Duration::Seconds(300), 64);
  const auto statuses = OnEveryRank(2, [&](int rank) {
    std::vector<float> values(rank == 0 ? 10 : 11, 1.0f);
    return group[static_cast<size_t>(rank)]->AllReduceSum(values);
  });
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_FALSE(statuses[1].ok());
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         testing::Values(Kind{"InProcess", &InProcess},
                                         Kind{"SameHost", &SameHost}),
                         [](const auto& test) { return test.param.name; });

TEST(Collective, SizesThatAreNotSupportedAreNamed) {
  for (int size : {0, 3, 6, 16}) EXPECT_FALSE(NewInProcessCollectives(size).ok()) << size;
  EXPECT_FALSE(JoinSameHost({.rank = 2, .size = 2, .meeting = "x"}).ok());
  EXPECT_FALSE(JoinSameHost({.rank = -1, .size = 2, .meeting = "x"}).ok());
  EXPECT_FALSE(JoinSameHost({.rank = 1, .size = 2}).ok());
}

}  // namespace
}  // namespace millrace::net
