// Tests of the NCCL collective beyond the common ones (collective_test.cc), against an imitation of
// NCCL.
#include "net/collective/nccl_collective.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "net/collective/nccl_imitation.h"

namespace millrace::net {
namespace {

using std::chrono::milliseconds;

class NcclCollectives : public testing::Test {
 protected:
  ~NcclCollectives() override { NcclImitation::stalls = NcclImitation::breaks = false; }

  // Every rank, on its own thread, joins and adds once; returns their results. `beside` runs for
  // each rank while it adds.
  static std::vector<Status> JoinAndAdd(
      int size, Duration deadline, void (*beside)(Collective&) = [](Collective&) {}) {
    std::random_device random;
    const std::string meeting = std::to_string(random()) + "-" + std::to_string(random());
    std::vector<Status> statuses(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto made = JoinNccl(
            {.group = {.rank = rank, .size = size, .meeting = meeting, .deadline = deadline},
             .stream = NewImitatedStream()});
        Status& status = statuses[static_cast<size_t>(rank)];
        if (!made.ok()) {
          status = made.status();
          return;
        }
        std::thread other(beside, std::ref(**made));
        std::vector<float> values(1000, static_cast<float>(rank));
        status = (*made)->AllReduceSum(values);
        other.join();
        if (status.ok()) {
          EXPECT_EQ(values[999], static_cast<float>(size * (size - 1) / 2));
        } else {
          EXPECT_EQ((*made)->AllReduceSum(values).message(), status.message());  // permanently
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(NcclImitation::communicators, 0);
    return statuses;
  }
};

TEST_F(NcclCollectives, OnlyTwoRanksAreAddedAtATime) {
  NcclImitation::ranks_most = 0;
  for (const Status& status : JoinAndAdd(8, Duration::Seconds(100))) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_EQ(NcclImitation::ranks_most, 2);
}

TEST_F(NcclCollectives, DevicesThatStallAreAnErrorAtTheDeadline) {
  NcclImitation::stalls = true;
  for (const Status& status : JoinAndAdd(4, Duration::Millis(150))) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  }
}

TEST_F(NcclCollectives, AbortReachesRanksWhoseDevicesStall) {
  NcclImitation::stalls = true;
  const auto statuses = JoinAndAdd(4, Duration::Seconds(300), [](Collective& collective) {
    if (collective.rank() != 2) return;
    std::this_thread::sleep_for(milliseconds(100));
    collective.Abort("the stage is unloaded");
  });
  for (const Status& status : statuses) EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(statuses[2].message().find("the stage is unloaded"), std::string::npos);
  EXPECT_NE(statuses[0].message().find("rank 2"), std::string::npos) << statuses[0].message();
}

TEST_F(NcclCollectives, AnErrorOfNcclIsAnErrorForAllRanks) {
  NcclImitation::stalls = true;
  std::thread breaker([] {
    std::this_thread::sleep_for(milliseconds(100));
    NcclImitation::breaks = true;
  });
  for (const Status& status : JoinAndAdd(2, Duration::Seconds(300))) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  }
  breaker.join();
  // Also while connecting.
  for (const Status& status : JoinAndAdd(2, Duration::Seconds(300))) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  }
}

}  // namespace
}  // namespace millrace::net
