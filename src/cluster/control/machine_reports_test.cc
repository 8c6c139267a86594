// What workers say of their machines: facts, profiles, links.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

cost::Profile ProfileOf(int layers, double fixed_s) {
  cost::Profile profile{.model = "m", .architecture = "a", .dtype = "bfloat16"};
  profile.num_layers = layers;
  profile.threads = 2;
  profile.saturation_tokens = 256;
  for (cost::StepFit* fit : {&profile.step, &profile.layers}) {
    fit->model = *cost::StepModel::Create(
        {}, {.fixed_s = fixed_s, .token_s = {fixed_s / 10}, .sequence_s = {0}});
  }
  return profile;
}

class Machines : public ScriptedWorkers {
 protected:
  Machines() {
    ControllerOptions options = Options();
    options.link_probes.emplace();
    Start(std::move(options));
  }
  void Say(uint64_t worker, ToController message) {
    c_->Receive(ConnectionId(worker), std::move(message), now_);
    Settle();
  }
  // The newest order is to this worker. It answers, and a second passes.
  void AnswerProbe(uint64_t worker, ProbedLink link, double latency_s) {
    ASSERT_FALSE(probes_.empty());
    const auto& [asked, order] = probes_.back();
    EXPECT_EQ(asked, worker);
    EXPECT_EQ(order.link, link);
    Say(worker, LinkProbed{.probe = order.probe, .latency_s = latency_s, .bytes_per_s = 1e9});
    Pass(1);
  }
};

TEST_F(Machines, TheStatusHasWhatTheWorkerSaid) {
  millrace::Join join;
  join.machine = {.cores = 8, .zone = "east", .price_usd_per_hour = 0.12, .spot = true};
  join.identity.numeric_class = "class";
  Join(1, join);
  Join(2);
  const ClusterStatus status = Describe();
  EXPECT_EQ(status.workers[0].machine, join.machine);
  EXPECT_EQ(status.workers[0].numeric_class, "class");
  EXPECT_EQ(status.workers[0].profile, nullptr);
  EXPECT_EQ(status.workers[1].machine, MachineFacts{}) << "unknown, not zero";
}

TEST_F(Machines, AProfileIsUsedOnlyIfItCanBeOfThisModel) {
  Join(1);
  const std::string good = cost::FormatProfileLine(ProfileOf(4, 1e-3));
  const std::string bad[] = {
      "",
      "{}",
      "not JSON",
      good.substr(0, good.size() / 2),
      cost::FormatProfileLine(ProfileOf(5, 1e-3)),  // of another model
      cost::FormatProfileLine(ProfileOf(4, 0)),     // takes no time
      cost::FormatProfileLine(ProfileOf(4, 2e5)),   // takes days
  };
  uint64_t refused = 0;
  for (const std::string& text : bad) {
    SCOPED_TRACE(text);
    Say(1, WorkerProfile{text});
    EXPECT_EQ(c_->counters().profiles_refused, ++refused);
    ASSERT_EQ(Describe().workers.size(), 1u) << "the worker stays";
    EXPECT_EQ(Describe().workers[0].profile, nullptr);
  }
  Say(1, WorkerProfile{good});
  ASSERT_NE(Describe().workers[0].profile, nullptr);
  EXPECT_EQ(cost::FormatProfileLine(*Describe().workers[0].profile), good);
  Say(1, WorkerProfile{"{}"});
  EXPECT_NE(Describe().workers[0].profile, nullptr) << "the earlier one stays";
}

// Otherwise its requests would fail at the first long prompt.
TEST_F(Machines, ASlowWorkerIsNotStuckInAFullStep) {
  for (const bool known : {false, true}) {
    Join(1);
    if (known) Say(1, WorkerProfile{cost::FormatProfileLine(ProfileOf(4, 1e-1))});
    Heartbeat beat{.incarnation = Incarnation(10), .sequence = 1000};
    beat.steps_done = 1;
    beat.batch_age_ms = 20'000;  // 2,048 tokens of 10 ms each take as long
    c_->Beat(ConnectionId(1), beat, now_);
    Settle();
    EXPECT_EQ(Describe().workers.size(), known ? 1u : 0u);
  }
}

TEST_F(Machines, LinksAreProbedInTurnAndShownWithTheirAge) {
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1).ok());
  Pass(10);
  EXPECT_TRUE(probes_.empty()) << "a request runs";
  c_->Abort(RequestId(1), std::nullopt, now_);
  EndStep(*Busy().begin());
  Pass(5);
  // First the controller's links: to each worker, and from it.
  AnswerProbe(1, ProbedLink::kFromController, 1e-3);
  AnswerProbe(2, ProbedLink::kFromController, 2e-3);
  AnswerProbe(1, ProbedLink::kToController, 3e-3);
  ASSERT_EQ(probes_.size(), 4u) << "one at a time";
  EXPECT_EQ(probes_[3].first, 2u);
  EXPECT_EQ(probes_[3].second.from.incarnation, Incarnation(10));
  const ProbeId between = probes_[3].second.probe;
  Say(1, LinkProbed{.probe = between, .latency_s = 1e-3, .bytes_per_s = 1e9});
  EXPECT_EQ(c_->counters().stale_messages, 1u) << "the other one was asked";
  AnswerProbe(2, ProbedLink::kFromWorker, 4e-3);
  AnswerProbe(2, ProbedLink::kToController, -1);
  EXPECT_EQ(c_->counters().links_probed, 4u);
  EXPECT_EQ(c_->counters().probes_failed, 1u);
  const ClusterStatus status = Describe();
  EXPECT_EQ(status.workers.size(), 2u);
  std::vector<std::pair<std::string, double>> links;
  for (const LinkStatus& link : status.links) {
    links.emplace_back(link.from + " " + link.to, link.latency_s);
    EXPECT_EQ(link.bytes_per_s, 1e9);
  }
  EXPECT_EQ(links, (std::vector<std::pair<std::string, double>>{{"coordinator w1", 1e-3},
                                                                {"coordinator w2", 2e-3},
                                                                {"w1 coordinator", 3e-3},
                                                                {"w1 w2", 4e-3}}));
  EXPECT_EQ(status.links[0].age, Duration::Seconds(5));
  EXPECT_EQ(status.links[3].age, Duration::Seconds(2));
  Lose(1);
  ASSERT_EQ(Describe().links.size(), 1u);
  EXPECT_EQ(Describe().links[0].to, "w2");
}

TEST_F(Machines, WorkersOfTheVersionBeforeAreNotProbed) {
  millrace::Join old;
  old.identity.protocol = {5, 5};
  Join(1, old);
  Pass(20);
  EXPECT_TRUE(probes_.empty());
  Join(2);
  Pass(20);
  EXPECT_EQ(Describe().workers.size(), 2u);
  ASSERT_EQ(probes_.size(), 1u);
  AnswerProbe(2, ProbedLink::kFromController, 1e-3);
  AnswerProbe(2, ProbedLink::kToController, 1e-3);
  Pass(20);
  EXPECT_EQ(probes_.size(), 2u) << "only the new worker's links with the controller";
}

}  // namespace
}  // namespace millrace::cluster
