// What a request has left on a worker that survives: fetched over a fast link, computed again if
// the link is slow.
#include <gtest/gtest.h>

#include <utility>

#include "cluster/control/pipelines/fetch_cost.h"
#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

// Two pipelines: workers 1 and 2 with two layers each, and worker 3 with all four.
class Fetches : public ScriptedWorkers {
 protected:
  Fetches() {
    ControllerOptions options = Options();
    options.elastic = false;
    options.scheduler.max_model_len = 256;
    options.link_probes = LinkProbeOptions{.quiet = Duration::Seconds(0)};
    options.plan = Chains({{kFront, kBoth}, {kBack, kBoth}, {kAll, kBoth}});
    Start(std::move(options));
    for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  }
  // All links have this rate.
  void MeasureLinks(double bytes_per_s) {
    while (!probes_.empty()) {
      for (const auto& [worker, order] : std::exchange(probes_, {})) {
        c_->Receive(ConnectionId(worker),
                    LinkProbed{.probe = order.probe, .latency_s = 1e-4, .bytes_per_s = bytes_per_s},
                    now_);
      }
      Settle();
    }
    EXPECT_EQ(c_->counters().links_probed, 12u) << "among three workers and the controller";
  }
  // A prompt of 100 tokens has run in each pipeline, in a quarter of a second. Worker 2 is lost,
  // and what follows at worker 3 is formed.
  void ComputeAndLose() {
    for (uint64_t id : {1, 2}) EXPECT_TRUE(Submit(id, 100).ok());
    Pass(0.25);
    EndStep(1);
    EndStep(3);
    Lose(2);
    EndStep(3);
    EXPECT_EQ(c_->counters().replays, 1u);
  }
};

TEST_F(Fetches, OverAFastLink) {
  MeasureLinks(1e6);
  ComputeAndLose();
  EXPECT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(c_->counters().fetch_too_slow, 0u);
}

TEST_F(Fetches, OverALinkThatWasNotMeasured) {
  ComputeAndLose();
  EXPECT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(c_->counters().fetch_too_slow, 0u);
}

// 100 tokens with 2 layers of 8 bytes take 1.6 s, and to compute 100 takes 0.25 s. Half of the
// layers are computed again in any case.
TEST_F(Fetches, NothingOverASlowLink) {
  MeasureLinks(1000);
  ComputeAndLose();
  EXPECT_TRUE(pulls_.empty());
  EXPECT_EQ(c_->counters().fetch_too_slow, 1u);
}

TEST(FetchCost, ALinkMayTakeTwiceAsLong) {
  EXPECT_TRUE((FetchCost{.link_s = 1.9, .compute_s = 1}.FetchIsBetter()));
  EXPECT_FALSE((FetchCost{.link_s = 2.1, .compute_s = 1}.FetchIsBetter()));
  // What is computed in any case is no argument for the link.
  EXPECT_FALSE((FetchCost{.link_s = 1.9, .lacking = 0.5, .compute_s = 1}.FetchIsBetter()));
}

}  // namespace
}  // namespace millrace::cluster
