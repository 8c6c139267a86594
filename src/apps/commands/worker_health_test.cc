#include "apps/commands/worker_health.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace millrace::apps {
namespace {

constexpr Time kNow = Time{} + Duration::Seconds(1000);

net::HttpResponse Ask(const std::string& path, bool connected, double busy_s,
                      const std::string& what = "") {
  std::optional<cluster::ComputingSince> computing;
  if (busy_s > 0) computing = {kNow + Duration::Seconds(-busy_s), what};
  return AnswerHealth(path, connected, computing, Duration::Seconds(60), kNow);
}

std::string MessageOf(const net::HttpResponse& response) {
  return ParseJson(response.body).value()["error"]["message"];
}

TEST(WorkerHealth, IsOkWhileConnectedAndBatchesMove) {
  EXPECT_EQ(Ask("/health", true, 0).status, 200);
  EXPECT_EQ(Ask("/health", true, 59).status, 200);
  EXPECT_EQ(Ask("/live", true, 59).status, 200);
}

TEST(WorkerHealth, WithoutAControllerItLivesAndIsNotHealthy) {
  EXPECT_EQ(Ask("/live", false, 0).status, 200);
  EXPECT_EQ(Ask("/health", false, 0).status, 503);
  EXPECT_NE(MessageOf(Ask("/health", false, 0)).find("controller"), std::string::npos);
}

TEST(WorkerHealth, NamesWhatIsStuck) {
  for (const char* path : {"/health", "/live"}) {
    const auto batch =
        Ask(path, true, 61, "a batch of 3 steps, the first of pipeline 4 with id 17");
    EXPECT_EQ(batch.status, 503);
    EXPECT_EQ(MessageOf(batch),
              "The computing thread has not ended a batch of 3 steps, the first of pipeline 4 with "
              "id 17 for 61.0 s.");
    EXPECT_EQ(MessageOf(Ask(path, false, 61)),
              "The computing thread has not taken up its work for 61.0 s.");
  }
}

TEST(WorkerHealth, OtherPathsAreUnknown) { EXPECT_EQ(Ask("/metrics", true, 0).status, 404); }

}  // namespace
}  // namespace millrace::apps
