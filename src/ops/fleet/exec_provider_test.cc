// A command that acquires and releases machines.
#include "ops/fleet/exec_provider.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/testing/temp_folder.h"

namespace millrace::ops {
namespace {

class ExecProviderTest : public testing::Test {
 protected:
  ExecProvider Make(const std::string& command, double timeout_s = 20) {
    return ExecProvider(command, "spot", Duration::Seconds(timeout_s), stop_);
  }
  std::atomic<bool> stop_ = false;
};

TEST_F(ExecProviderTest, TheCommandGetsTheRequestAndItsAnswerIsRead) {
  const TempFolder folder;
  const std::string asked = folder.path() + "/asked";
  ExecProvider provider = Make(fmt::format(
      R"(cat >> {}; echo '{{"machines": [{{"id": "i-1", "worker": "w1"}}, {{"id": "i-2"}}]}}')",
      asked));
  const auto machines = provider.List();
  ASSERT_TRUE(machines.ok()) << machines.status().ToString();
  ASSERT_EQ(machines->size(), 2U);
  EXPECT_EQ((*machines)[0].worker, "w1");
  EXPECT_EQ((*machines)[1].worker, "i-2");
  EXPECT_TRUE(provider.Acquire(3).ok());
  EXPECT_TRUE(provider.Release("i-1").ok());
  EXPECT_EQ(*ReadFile(asked, 1 << 16),
            "{\"kind\":\"spot\",\"op\":\"list\"}\n"
            "{\"count\":3,\"kind\":\"spot\",\"op\":\"acquire\"}\n"
            "{\"kind\":\"spot\",\"machine\":\"i-1\",\"op\":\"release\"}\n");
}

TEST_F(ExecProviderTest, PricesOfZeroAndNone) {
  EXPECT_EQ(*Make("echo '{\"price_usd_per_h\": 0}'").Price(), 0);
  EXPECT_EQ(*Make("echo '{}'").Price(), std::nullopt);
  EXPECT_EQ(*Make("true").Price(), std::nullopt);
  EXPECT_FALSE(Make("echo '{\"price_usd_per_h\": \"cheap\"}'").Price().ok());
}

TEST_F(ExecProviderTest, FailuresAreOneLineWithTheCause) {
  const auto error = [this](const std::string& command) {
    const auto machines = Make(command, 1).List();
    return machines.ok() ? "" : machines.status().message();
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos && text.find('\n') == std::string::npos;
  };
  EXPECT_TRUE(has(error("exit 3"), "ended with exit code 3"));
  EXPECT_TRUE(has(error("echo '{\"error\": \"no quota\"}'; exit 1"), "no quota"));
  EXPECT_TRUE(has(error("echo '{\"error\": \"no quota\"}'"), "fails: no quota"));
  EXPECT_TRUE(has(error("echo nonsense"), "'nonsense'"));
  EXPECT_TRUE(has(error("echo '[1]'"), "expected one JSON object"));
  EXPECT_TRUE(has(error("echo '{}'"), "the provider printed no machine list"));
  EXPECT_TRUE(has(error("echo '{\"machines\": [{\"id\": \"a b\"}]}'"), "machine 0 has no id"));
  EXPECT_TRUE(has(error("echo '{\"machines\": [{\"id\": 7}]}'"), "machine 0 has no id"));
  EXPECT_TRUE(has(error("sleep 100"), "has not ended after 1 s"));
  EXPECT_TRUE(has(error("head -c 1000000 /dev/zero"), "more than 262144 bytes"));
  EXPECT_TRUE(has(error("/no/such/program"), "exit code 127"));
}

TEST_F(ExecProviderTest, TheEndOfTheControllerEndsACall) {
  stop_ = true;
  EXPECT_EQ(Make("sleep 100", 100).Acquire(1).code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace millrace::ops
