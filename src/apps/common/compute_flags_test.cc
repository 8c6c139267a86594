#include "apps/common/compute_flags.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace millrace::apps {
namespace {

TEST(ComputeFlagsTest, OneOfManyCpusIsLeftToAFrontEnd) {
  EXPECT_EQ(ThreadsFor(1, true), 1);
  EXPECT_EQ(ThreadsFor(2, true), 2);
  EXPECT_EQ(ThreadsFor(3, true), 2);
  EXPECT_EQ(ThreadsFor(64, true), 63);
  EXPECT_EQ(ThreadsFor(64, false), 64);
  EXPECT_EQ(ThreadsFor(1000, false), 256);
  EXPECT_GE(DefaultThreads(), 1);
}

// A thread beyond the quota makes the others wait for it.
TEST(ComputeFlagsTest, AQuotaBoundsTheThreads) {
  EXPECT_EQ(CpusUnder({}, 64), 64);
  EXPECT_EQ(CpusUnder(4.0, 64), 4);
  EXPECT_EQ(CpusUnder(2.9, 64), 2);
  EXPECT_EQ(CpusUnder(0.5, 64), 1);
  EXPECT_EQ(CpusUnder(100.0, 2), 2);
}

TEST(ComputeFlagsTest, ANodeMustBeThere) {
  const Status far = BindToNumaNode(1000);
  EXPECT_NE(far.message().find("node"), std::string::npos) << far.message();
  EXPECT_FALSE(far.ok());
}

// In a thread of its own, which alone is bound.
TEST(ComputeFlagsTest, BindingKeepsToTheNodesCpus) {
  ASSERT_FALSE(NumaNodes().empty());
  std::thread([] {
    const Status bound = BindToNumaNode(NumaNodes().front());
    if (!bound.ok()) {  // a system without NUMA, or a container that forbids it
      EXPECT_EQ(bound.code(), StatusCode::kFailedPrecondition) << bound.message();
      return;
    }
    EXPECT_EQ(NumaNodes().size(), 1u);
    EXPECT_EQ(NumaAdvice(), "");
    EXPECT_GE(DefaultThreads(), 1);
  }).join();
}

}  // namespace
}  // namespace millrace::apps
