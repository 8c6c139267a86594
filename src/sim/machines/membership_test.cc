// From a trace of machines to instances: which machine carries which, when it takes requests, when
// it leaves.
#include "sim/machines/membership.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace millrace::sim {
namespace {

std::string Told(const std::vector<MembershipChange>& changes) {
  constexpr const char* kNames[] = {"came", "ready", "notice", "lost"};
  std::string text;
  for (const MembershipChange& c : changes) {
    text += fmt::format("{:g} {} {} on {}\n", c.at.ns * 1e-9, kNames[static_cast<int>(c.what)],
                        c.instance, c.machine);
  }
  return text;
}

std::string Of(std::string_view trace, const MembershipOptions& options) {
  return Told(MembershipOf(*ParseAvailability(trace), options));
}

TEST(Membership, LoadsWeightsAndGetsANotice) {
  EXPECT_EQ(Of("0,add,a\n100000,add,b\n200000,remove,a\n", {.instances = 2}),
            "0 came 0 on 0\n"
            "0 ready 0 on 0\n"
            "100 came 1 on 1\n"
            "130 ready 1 on 1\n"
            "170 notice 0 on 0\n"
            "200 lost 0 on 0\n");
}

TEST(Membership, ASpareTakesOver) {
  EXPECT_EQ(Of("0,add,a\n0,add,b\n50000,remove,a\n", {.instances = 1, .notice_s = 0, .load_s = 5}),
            "0 came 0 on 0\n"
            "0 ready 0 on 0\n"
            "50 notice 0 on 0\n"
            "50 lost 0 on 0\n"
            "50 came 0 on 1\n"
            "55 ready 0 on 1\n");
  EXPECT_EQ(Of("0,add,a\n0,add,b\n50000,remove,b\n", {.instances = 1}),
            "0 came 0 on 0\n"
            "0 ready 0 on 0\n")
      << "a lost spare affects no instance";
}

TEST(Membership, NoNoticeBeforeItCame) {
  EXPECT_EQ(Of("0,add,a\n100000,add,b\n110000,remove,b\n", {.instances = 2}),
            "0 came 0 on 0\n"
            "0 ready 0 on 0\n"
            "100 came 1 on 1\n"
            "100 notice 1 on 1\n"
            "110 lost 1 on 1\n"
            "130 ready 1 on 1\n")
      << "ready comes too late; the service ignores it";
}

}  // namespace
}  // namespace millrace::sim
