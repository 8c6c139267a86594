#include "ops/hub/retries.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::ops {
namespace {

struct Slept {
  std::vector<double> seconds;
  RetryPolicy Policy(int attempts) {
    return {.attempts = attempts, .sleep = [this](Duration d) { seconds.push_back(d.seconds()); }};
  }
};

const HubResult kBroken = {.status = Unavailable("broken")};

TEST(HubRetries, WaitLongerEachTimeAndEnd) {
  Slept slept;
  Retries retries(slept.Policy(4));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(retries.Next(kBroken, false).ok());
  const Status last = retries.Next(kBroken, false);
  EXPECT_EQ(last.code(), StatusCode::kUnavailable);
  EXPECT_NE(last.message().find("broken; 4 attempts failed"), std::string::npos);
  EXPECT_EQ(slept.seconds, (std::vector<double>{1, 2, 4}));
}

TEST(HubRetries, ProgressStartsTheCountAgain) {
  Slept slept;
  Retries retries(slept.Policy(3));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(retries.Next(kBroken, true).ok());
  EXPECT_TRUE(retries.Next(kBroken, false).ok());
  EXPECT_FALSE(retries.Next(kBroken, false).ok());
}

TEST(HubRetries, WhatCannotPassIsNotTriedAgain) {
  for (const Status& status : {NotFound("x"), DataLoss("x"), FailedPrecondition("x"),
                               Status(StatusCode::kUnauthenticated, "x")}) {
    Slept slept;
    EXPECT_EQ(Retries(slept.Policy(5)).Next({.status = status}, true).code(), status.code());
    EXPECT_TRUE(slept.seconds.empty());
  }
}

TEST(HubRetries, AServerSaysHowLongToWait) {
  Slept slept;
  Retries retries(slept.Policy(5));
  EXPECT_TRUE(retries.Next({.status = ResourceExhausted("x"), .retry_after_s = 17}, false).ok());
  EXPECT_EQ(slept.seconds, std::vector<double>{17});
  EXPECT_FALSE(retries.Next({.status = ResourceExhausted("x"), .retry_after_s = 4000}, false).ok());
}

}  // namespace
}  // namespace millrace::ops
