// The plan that one controller stores for the next.
#include "ops/cluster/kept_plan.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

namespace millrace::ops {
namespace {

constexpr char kPlan[] =
    "format: 1\nmodel: demo\nlayers: 4\nstages:\n"
    "  - {stage: 0, nodes: [b], layers: [0, 3]}\n  - {stage: 1, nodes: [a], layers: [3, 4]}\n";

class KeptPlanTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "millrace-plan-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    Lead();
  }
  void TearDown() override {
    leading_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void Lead() {
    leading_.reset();
    auto leading = Leading::Wait("sqlite:" + folder_, "me", {}, clock_);
    ASSERT_TRUE(leading.ok()) << leading.status().ToString();
    leading_ = std::move(*leading);
  }
  std::optional<WorkerPlan> Read(const std::string& model, const std::string& layout) {
    const auto read = KeptPlan(leading_, model, layout).Read();
    EXPECT_TRUE(read.ok()) << read.status().ToString();
    return read.ok() ? *read : std::nullopt;
  }

  const SteadyClock clock_{};
  std::string folder_;
  std::shared_ptr<Leading> leading_;
};

TEST_F(KeptPlanTest, TheNextLeaderReadsIt) {
  EXPECT_FALSE(Read("model", "2 x 1"));
  ASSERT_TRUE(KeptPlan(leading_, "model", "2 x 1").Write(kPlan, 2).ok());
  const Term before = leading_->term();
  Lead();  // without waiting: no other process uses the store
  EXPECT_GT(leading_->term(), before);
  const auto plan = Read("model", "2 x 1");
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->workers, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(plan->plan.stages[0].layers, (LayerRange{0, 3}));
  EXPECT_FALSE(Read("another model", "2 x 1"));
  EXPECT_FALSE(Read("model", "3 x 1")) << "the command line has changed since";
}

TEST_F(KeptPlanTest, APlanThatWasGivenUpIsNotKept) {
  KeptPlan kept(leading_, "model", "");
  ASSERT_TRUE(kept.Write(kPlan, 2).ok());
  ASSERT_TRUE(kept.Settle(2, false).ok());
  EXPECT_FALSE(Read("model", "")) << "the command line's layout is valid again";
  ASSERT_TRUE(kept.Write(kPlan, 3).ok());
  ASSERT_TRUE(kept.Settle(3, true).ok());
  const std::string other = std::string(kPlan).replace(std::string(kPlan).find("[b]"), 3, "[c]");
  ASSERT_TRUE(kept.Write(other, 5).ok());
  ASSERT_TRUE(kept.Settle(4, true).ok());  // another change, which it did not write
  ASSERT_TRUE(kept.Settle(5, false).ok());
  auto plan = Read("model", "");
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->workers.front(), "b");
  // The next controller has read it, and returns to it when its own change fails.
  KeptPlan next(leading_, "model", "");
  ASSERT_TRUE(next.Read().ok());
  ASSERT_TRUE(next.Write(other, 2).ok());
  EXPECT_EQ(Read("model", "")->workers.front(), "c");
  ASSERT_TRUE(next.Settle(2, false).ok());
  EXPECT_EQ(Read("model", "")->workers.front(), "b");
}

TEST_F(KeptPlanTest, UnreadablePlansAreIgnored) {
  for (const char* text : {"", "format: 2\n", "{"}) {
    ASSERT_TRUE(KeptPlan(leading_, "model", "").Write(text, 2).ok());
    EXPECT_FALSE(Read("model", "")) << text;
  }
  for (const char* value : {"", "7", "[]", "{}", R"({"model":"model","layout":"","plan":7})"}) {
    ASSERT_TRUE(leading_->Keep("applied-plan", value).ok());
    EXPECT_FALSE(Read("model", "")) << value;
  }
  EXPECT_EQ(KeptPlan(leading_, "model", "").Write(std::string(2 << 20, ' '), 2).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::ops
