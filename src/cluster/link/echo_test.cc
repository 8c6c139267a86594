// Echoes over loopback sockets: what a worker measures of its links with the controller.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "cluster/link/echo_service.h"
#include "cluster/link/testing/link_harness.h"

namespace millrace::cluster {
namespace {

using testing::ControllerEnd;
using testing::kConnectLimit;
using testing::WaitUntil;
using testing::WorkerEnd;
using Way = EchoCall::Way;

class Echoes : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(worker_.Enter().ok()); }
  std::shared_ptr<EchoCall> Open() {
    auto echo = worker_.client->OpenEcho();
    EXPECT_TRUE(echo.ok()) << echo.status().ToString();
    return *echo;
  }
  static StatusCode CodeOf(EchoCall& echo, Duration limit = kConnectLimit) {
    return echo.Seconds(Way::kToController, 64, limit).status().code();
  }

  ControllerEnd controller_;
  WorkerEnd worker_{controller_.address(), 7};
};

TEST_F(Echoes, TimeBytesInBothDirections) {
  const auto echo = Open();
  const SteadyClock clock;
  for (const Way way : {Way::kToController, Way::kFromController}) {
    for (const size_t bytes :
         {size_t{1}, wire::kEchoBytesMax, wire::kEchoBytesMax + 1, EchoCall::kBytesMax}) {
      const Time began = clock.Now();
      const auto seconds = echo->Seconds(way, bytes, kConnectLimit);
      ASSERT_TRUE(seconds.ok()) << bytes << ": " << seconds.status().ToString();
      EXPECT_GT(*seconds, 0);
      EXPECT_LE(*seconds, (clock.Now() - began).seconds());
    }
  }
  EXPECT_EQ(controller_.messages.size(), 1u) << "the session has nothing to do with it";
}

TEST_F(Echoes, EndWithTheSession) {
  const auto before = Open();
  EXPECT_EQ(CodeOf(*before), StatusCode::kOk);
  worker_.client->Disconnect();
  EXPECT_EQ(CodeOf(*before), StatusCode::kCancelled);
  EXPECT_EQ(worker_.client->OpenEcho().status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(worker_.Enter().ok());
  EXPECT_EQ(CodeOf(*Open()), StatusCode::kOk);
}

TEST_F(Echoes, AreEndedWhileTheyWait) {
  const auto echo = Open();
  ASSERT_EQ(CodeOf(*echo), StatusCode::kOk);
  std::atomic<bool> over = false;
  std::thread measuring([&] {
    while (echo->Seconds(Way::kFromController, EchoCall::kBytesMax, kConnectLimit).ok()) continue;
    over = true;
  });
  worker_.client->Disconnect();
  measuring.join();
  EXPECT_TRUE(over);
}

TEST_F(Echoes, HaveALimit) {
  const auto echo = Open();
  EXPECT_EQ(CodeOf(*echo, Duration()), StatusCode::kDeadlineExceeded);
  EXPECT_NE(CodeOf(*echo), StatusCode::kOk) << "the answers still to come would count";
}

TEST_F(Echoes, OnlySomeAtOnce) {
  std::vector<std::shared_ptr<EchoCall>> echoes;
  for (size_t i = 0; i < EchoService::kCallsMax; ++i) {
    echoes.push_back(Open());
    EXPECT_EQ(CodeOf(*echoes.back()), StatusCode::kOk);
  }
  EXPECT_EQ(CodeOf(*Open()), StatusCode::kResourceExhausted);
  echoes.clear();
  EXPECT_TRUE(WaitUntil([&] { return CodeOf(*Open()) == StatusCode::kOk; }));
}

TEST_F(Echoes, NeedTheToken) {
  const auto channel =
      grpc::CreateChannel(controller_.address(), grpc::InsecureChannelCredentials());
  EchoCall stranger(channel, testing::PlainText("fedcba9876543210"), Incarnation(9));
  EXPECT_EQ(CodeOf(stranger), StatusCode::kUnauthenticated);
  EXPECT_EQ(controller_.server->counters().refused, 1u);
}

TEST_F(Echoes, OutliveNoController) {
  const auto echo = Open();
  ASSERT_EQ(CodeOf(*echo), StatusCode::kOk);
  controller_.server.reset();
  EXPECT_EQ(CodeOf(*echo), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace::cluster
