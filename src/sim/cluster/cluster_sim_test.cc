// ClusterSim against Service, tick for tick: what the production controller and workers add to the
// production scheduler takes no time when links and machines are ideal.
#include "sim/cluster/cluster_sim.h"

#include <gtest/gtest.h>

#include <array>

#include "base/rng.h"
#include "sim/cluster/instances.h"
#include "sim/fast/service.h"
#include "sim/testing_costs.h"

namespace millrace::sim {
namespace {

// Depends on everything that a step's time may depend on.
class UnevenCost : public cost::StepCost {
 public:
  explicit UnevenCost(double speed) : speed_(speed) {}
  double Seconds(const cost::BatchShape& b) const override {
    if (b.empty()) return 0;
    return speed_ * (3.1e-3 + 1.7e-4 * static_cast<double>(b.prefill_tokens) +
                     1.3e-8 * static_cast<double>(b.prefill_tokens_squared) +
                     2.3e-6 * static_cast<double>(b.decode_context) + 4.7e-5 * b.decode_sequences);
  }

 private:
  const double speed_;
};

class Given : public Workload {
 public:
  explicit Given(std::vector<SimRequest> requests) : requests_(std::move(requests)) {}
  std::optional<SimRequest> Next() override {
    if (next_ == requests_.size()) return std::nullopt;
    return requests_[next_++];
  }

 private:
  const std::vector<SimRequest> requests_;
  size_t next_ = 0;
};

std::vector<SimRequest> Draw(uint64_t seed, uint64_t requests, double rate) {
  const auto workload =
      NewSynthetic({.requests = requests,
                    .rate = rate,
                    .prompt = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 300},
                    .output = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 80},
                    .seed = seed});
  std::vector<SimRequest> all;
  while (const auto request = workload->Next()) all.push_back(*request);
  return all;
}

// `replicas` of the model, each a chain of `stages` on a node of its own.
Plan Replicas(int replicas, int stages) {
  Plan plan;
  plan.num_layers = stages * 2;
  for (int r = 0; r < replicas; ++r) {
    for (int s = 0; s < stages; ++s) {
      const int at = r * stages + s;
      plan.stages.push_back({{r}, 1, {2 * s, 2 * s + 2}, StageRole::kBoth});
      plan.edges.push_back({s == 0 ? std::optional<int>() : at - 1, at, 100});
    }
    plan.edges.push_back({r * stages + stages - 1, {}, 100});
  }
  return plan;
}

struct Deployment {
  std::vector<std::unique_ptr<UnevenCost>> costs;  // by stage of a replica
  std::vector<std::unique_ptr<StageMachine>> machines;
  InstanceOptions instance;
  ClusterSimOptions cluster;
};

Deployment Deploy(int replicas, int stages, sched::SchedulerOptions scheduler) {
  Deployment d;
  d.cluster.plan = Replicas(replicas, stages);
  for (int r = 0; r < replicas; ++r) d.cluster.cluster.nodes.push_back({.name = "n"});
  d.cluster.other_links = OtherLinks{.bytes_per_s = 1e12};
  d.cluster.controller.scheduler = scheduler;
  d.cluster.controller.kv_high_water = 1;
  d.instance.scheduler = scheduler;
  for (int s = 0; s < stages; ++s) {
    d.costs.push_back(std::make_unique<UnevenCost>(1 + 0.3 * s));
    d.instance.stages.push_back(d.costs.back().get());
    d.machines.push_back(std::make_unique<StageMachine>(
        StageMachine::Options{.cost = d.costs.back().get(), .kv_tokens = int64_t{1} << 24}));
  }
  for (int r = 0; r < replicas; ++r) {
    for (const auto& machine : d.machines) d.cluster.machines.push_back(machine.get());
  }
  return d;
}

sched::SchedulerOptions RandomScheduler(Rng& rng) {
  sched::SchedulerOptions scheduler;
  scheduler.block_size = rng.Between(0, 1) ? 8 : 16;
  scheduler.num_blocks = 4096;
  scheduler.max_num_seqs = static_cast<int>(rng.Between(2, 24));
  scheduler.max_num_batched_tokens = static_cast<int>(rng.Between(64, 512));
  scheduler.max_model_len = 512;
  scheduler.max_waiting = 1 << 20;
  scheduler.prefix_caching = false;
  return scheduler;
}

// To a fraction of a nanosecond over all requests.
void ExpectSameTimes(const LatencyReport& a, const LatencyReport& b, uint64_t seed) {
  EXPECT_EQ(a.requests, b.requests) << seed;
  EXPECT_EQ(a.refused, b.refused) << seed;
  EXPECT_EQ(a.output_tokens, b.output_tokens) << seed;
  EXPECT_NEAR(a.ttft.sum(), b.ttft.sum(), 1e-9) << seed;
  EXPECT_NEAR(a.itl.sum(), b.itl.sum(), 1e-9) << seed;
  EXPECT_NEAR(a.e2e.sum(), b.e2e.sum(), 1e-9) << seed;
  EXPECT_EQ(a.ttft.max(), b.ttft.max()) << seed;
  EXPECT_EQ(a.itl.max(), b.itl.max()) << seed;
  EXPECT_EQ(a.e2e.max(), b.e2e.max()) << seed;
}

TEST(ClusterSim, AChainHasTheTimesOfAnInstance) {
  uint64_t preempted = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    const int stages = static_cast<int>(rng.Between(1, 4));
    sched::SchedulerOptions scheduler = RandomScheduler(rng);
    if (seed % 3 == 0) scheduler.num_blocks = 2 * 512 / scheduler.block_size;  // scarce
    Deployment d = Deploy(1, stages, scheduler);
    d.instance.hop_s = d.cluster.inside_node.latency_s = 1e-3 * rng.Uniform();
    d.instance.scheduler_overhead_s = d.cluster.overhead.step_s = 1e-3 * rng.Uniform();
    d.instance.scheduler_overhead_per_seq_s = d.cluster.overhead.sequence_s = 1e-4 * rng.Uniform();
    const std::vector<SimRequest> requests = Draw(seed, 200, 2 + 6 * rng.Uniform());
    const auto service = std::move(Service::Create({.instances = {d.instance}})).value();
    Given one(requests), two(requests);
    const ServiceReport expected = service->Run(one);
    const auto sim = std::move(ClusterSim::Create(d.cluster)).value();
    const ClusterReport report = sim->Run(two);
    ExpectSameTimes(report.latency, expected.latency, seed);
    EXPECT_EQ(report.steps, expected.steps) << seed;
    // A stage does not see preemptions of sequences that it has not begun.
    EXPECT_NEAR(static_cast<double>(report.stage_use[0].preemptions),
                static_cast<double>(expected.stats[0].preemptions_recompute), 1)
        << seed;
    EXPECT_EQ(report.stage_use[0].sequences, expected.use[0].sequences) << seed;
    for (int s = 0; s < stages; ++s) {
      EXPECT_NEAR(report.stage_busy_share[s], expected.busy_share[0][s], 1e-9) << seed;
    }
    preempted += report.stage_use[0].preemptions;
    sim->controller().CheckIntegrity();
  }
  EXPECT_GT(preempted, 100u);
}

// Which replica each request goes to if they take turns.
std::vector<std::vector<SimRequest>> InTurns(const std::vector<SimRequest>& requests,
                                             int replicas) {
  std::vector<std::vector<SimRequest>> parts(static_cast<size_t>(replicas));
  for (size_t i = 0; i < requests.size(); ++i) parts[i % parts.size()].push_back(requests[i]);
  return parts;
}

TEST(ClusterSim, ReplicasHaveTheTimesOfInstances) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    const int replicas = static_cast<int>(rng.Between(2, 5)),
              stages = static_cast<int>(rng.Between(1, 2));
    Deployment d = Deploy(replicas, stages, RandomScheduler(rng));
    d.cluster.controller.dispatch =
        cluster::DispatchOptions{.policy = cluster::DispatchPolicy::kRoundRobin};
    const std::vector<SimRequest> requests = Draw(seed, 300, replicas * (2 + 4 * rng.Uniform()));
    LatencyReport expected;
    for (const auto& part : InTurns(requests, replicas)) {
      ASSERT_FALSE(part.empty());
      const auto service = std::move(Service::Create({.instances = {d.instance}})).value();
      Given given(part);
      expected.Merge(service->Run(given).latency);
    }
    const auto sim = std::move(ClusterSim::Create(d.cluster)).value();
    Given given(requests);
    ExpectSameTimes(sim->Run(given).latency, expected, seed);
  }
}

// The fast path: the same dispatch, the same times.
TEST(ClusterSim, InstancesHaveTheTimesOfService) {
  using cluster::DispatchPolicy;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    const int replicas = static_cast<int>(rng.Between(2, 6)),
              stages = static_cast<int>(rng.Between(1, 3));
    sched::SchedulerOptions scheduler = RandomScheduler(rng);
    if (seed % 4 == 0) scheduler.num_blocks = 3 * 512 / scheduler.block_size;  // scarce
    const Deployment d = Deploy(1, stages, scheduler);
    InstanceClusterOptions options;
    options.service.instances.assign(static_cast<size_t>(replicas), d.instance);
    for (InstanceOptions& instance : options.service.instances) {
      instance.hop_s = 1e-3;
      instance.scheduler_overhead_s = 2e-3;
    }
    options.service.seed = seed;
    options.service.front_end = Duration::Micros(rng.Between(0, 2000));
    options.service.dispatch =
        std::array{DispatchPolicy::kFewestRequests, DispatchPolicy::kRoundRobin,
                   DispatchPolicy::kRandom}[seed % 3];
    const std::vector<SimRequest> requests = Draw(seed, 300, replicas * (2 + 6 * rng.Uniform()));
    Given one(requests), two(requests);
    const auto service = std::move(Service::Create(options.service)).value();
    const ServiceReport expected = service->Run(one);
    const auto instances = std::move(InstanceCluster::Create(options)).value();
    const ServiceReport report = instances->Run(two);
    ExpectSameTimes(report.latency, expected.latency, seed);
    EXPECT_EQ(report.steps, expected.steps) << seed;
    for (size_t i = 0; i < report.use.size(); ++i) {
      EXPECT_EQ(report.use[i].sequences, expected.use[i].sequences) << seed;
      EXPECT_EQ(report.use[i].preemptions, expected.stats[i].preemptions_recompute) << seed;
    }
  }
}

TEST(ClusterSim, TheSameSeedIsTheSameRun) {
  const auto run = [] {
    Rng rng(3);
    Deployment d = Deploy(3, 2, RandomScheduler(rng));
    const auto sim = std::move(ClusterSim::Create(d.cluster)).value();
    Given given(Draw(3, 200, 10));
    const ClusterReport report = sim->Run(given);
    return std::tuple(report.events, report.latency.e2e.sum(), report.latency.itl.sum());
  };
  EXPECT_EQ(run(), run());
}

TEST(ClusterSim, AModelThatDoesNotFitIsRefused) {
  Rng rng(1);
  Deployment d = Deploy(1, 1, RandomScheduler(rng));
  const StageMachine full({.cost = d.costs[0].get(), .kv_tokens = 0});
  d.cluster.machines = {&full};
  const auto made = ClusterSim::Create(d.cluster);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kFailedPrecondition);
  d.cluster.machines.clear();
  EXPECT_FALSE(ClusterSim::Create(d.cluster).ok());
}

}  // namespace
}  // namespace millrace::sim
