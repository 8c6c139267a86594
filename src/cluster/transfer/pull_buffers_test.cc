#include "cluster/transfer/pull_buffers.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace millrace::cluster {
namespace {

TEST(PullBuffers, UsesAgainWhatWasGivenBackLast) {
  PullBuffers buffers(4096, 2);
  std::byte* first = nullptr;
  {
    const PullBuffer one = buffers.Take(100);
    EXPECT_EQ(one.bytes.size(), 100u);
    first = one.bytes.data();
    first[99] = std::byte{7};
  }
  const PullBuffer again = buffers.Take(4096);
  EXPECT_EQ(again.bytes.data(), first);
  EXPECT_EQ(again.bytes[99], std::byte{7}) << "it was cleared";
}

TEST(PullBuffers, GivesTwoUsersTwoBuffers) {
  PullBuffers buffers(4096, 2);
  const PullBuffer one = buffers.Take(4096);
  const PullBuffer two = buffers.Take(4096);
  EXPECT_NE(one.bytes.data(), two.bytes.data());
}

TEST(PullBuffers, KeepsAtMostItsLimit) {
  PullBuffers buffers(4096, 2);
  std::vector<PullBuffer> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(buffers.Take(1));
  std::vector<const std::byte*> given_back;
  for (PullBuffer& buffer : taken) {
    given_back.push_back(buffer.bytes.data());
    buffer = {};
  }
  // The first two that came back are kept, and the last of them is taken first.
  EXPECT_EQ(buffers.Take(1).bytes.data(), given_back[1]);
}

TEST(PullBuffers, MakesRoomForMoreThanABuffer) {
  PullBuffers buffers(4096, 2);
  const PullBuffer large = buffers.Take(10'000);
  EXPECT_EQ(large.bytes.size(), 10'000u);
}

TEST(PullBuffers, ABufferMayOutliveThem) {
  PullBuffer left;
  {
    PullBuffers buffers(4096, 2);
    left = buffers.Take(4096);
  }
  left.bytes[4095] = std::byte{1};
  left = {};
}

}  // namespace
}  // namespace millrace::cluster
