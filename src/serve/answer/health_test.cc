#include "serve/answer/health.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace millrace::serve {
namespace {

Json BodyOf(const net::HttpResponse& response) { return Json::parse(response.body); }

cluster::GeneratorStats StalledStats() {
  cluster::GeneratorStats stats;
  stats.stalled.emplace();
  stats.stalled->id = RequestId(7);
  stats.stalled->age = Duration::Seconds(2);
  return stats;
}

TEST(Health, WhatThisProcessStallsIs503) {
  EXPECT_EQ(HealthAnswer({}, "").status, 200);
  const net::HttpResponse stalled = HealthAnswer(StalledStats(), "cmpl-1");
  EXPECT_EQ(stalled.status, 503);
  EXPECT_EQ(BodyOf(stalled)["request"], 7);
  EXPECT_EQ(BodyOf(stalled)["error"]["message"],
            "Request 7 (cmpl-1) could run but makes no progress; it waits for: nothing.");
}

TEST(Health, WhatWorkersStallIs200AndNamesThem) {
  cluster::GeneratorStats stats = StalledStats();
  stats.stalled_at = {"w1", "w2"};
  const net::HttpResponse waits = HealthAnswer(stats, "cmpl-1");
  EXPECT_EQ(waits.status, 200) << "a restart of the controller would lose all streams";
  EXPECT_EQ(BodyOf(waits)["stalled"]["waits_for_workers"], (Json{"w1", "w2"}));
}

TEST(Health, ItSaysWhichWorkerToRestart) {
  cluster::GeneratorStats stats;
  stats.still_workers = {{"w1", "its computing thread has not moved for 10.3 s"}};
  const net::HttpResponse still = HealthAnswer(stats, "");
  EXPECT_EQ(still.status, 200);
  const Json worker = BodyOf(still)["restart_workers"][0];
  EXPECT_EQ(worker["name"], "w1");
  EXPECT_EQ(worker["reason"], "its computing thread has not moved for 10.3 s");
  EXPECT_EQ(worker["message"], "Restart the process of worker w1, not this controller.");
}

}  // namespace
}  // namespace millrace::serve
