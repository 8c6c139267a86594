// Fair shares of clients (SchedulingPolicy::kFair) in a simulated cluster: the production
// controller and schedulers under a load of two clients, ten requests of one to one of the other.
#include <gtest/gtest.h>

#include "sim/cluster/cluster_sim.h"
#include "sim/cluster/testing_plans.h"

namespace millrace::sim {
namespace {

// Requests per second of the two clients. One replica serves about 60.
LatencyReport OfTwoClients(double many, double few, int replicas, sched::SchedulingPolicy policy) {
  ClusterSimOptions options = ReplicaOptions(replicas);
  options.controller.scheduler.max_model_len = 1024;
  options.controller.scheduler.max_num_seqs = 16;
  options.controller.scheduler.max_waiting = 1 << 20;
  options.controller.scheduler.policy = policy;
  std::vector<std::unique_ptr<Workload>> clients;
  for (const double rate : {many, few}) {
    clients.push_back(NewSynthetic({.requests = 1'000'000,
                                    .duration_s = 8,
                                    .rate = rate,
                                    .prompt = {.a = 100},
                                    .output = {.a = 20},
                                    .seed = clients.size()}));
  }
  const auto workload = NewOfClients(std::move(clients), 1'000'000);
  return std::move(ClusterSim::Create(std::move(options))).value()->Run(*workload).latency;
}

double ShareOfFew(const LatencyReport& report) {
  const auto told = [&](size_t client) {
    return static_cast<double>(report.clients.at(client).told_while_arriving);
  };
  return told(1) / (told(0) + told(1));
}

// Both offer more than they can get.
TEST(FairShares, TenToOneOffersGetEqualSharesWhileBothWait) {
  using enum sched::SchedulingPolicy;
  for (const int replicas : {1, 2}) {
    const LatencyReport fcfs = OfTwoClients(400 * replicas, 40 * replicas, replicas, kFcfs);
    EXPECT_NEAR(ShareOfFew(fcfs), 1.0 / 11, 0.02) << "as they offer";
    const LatencyReport fair = OfTwoClients(400 * replicas, 40 * replicas, replicas, kFair);
    EXPECT_NEAR(ShareOfFew(fair), 0.5, 0.05) << replicas << " replicas";
    EXPECT_EQ(fair.requests, fcfs.requests) << "everything is served in the end";
    EXPECT_NEAR(fair.seconds(), fcfs.seconds(), 0.05 * fcfs.seconds()) << "at the same speed";
  }
}

// The light client asks for less than its share and does not wait behind the other.
TEST(FairShares, WhoAsksForLessThanItsShareDoesNotWaitForTheOthers) {
  using enum sched::SchedulingPolicy;
  const LatencyReport fcfs = OfTwoClients(400, 5, 1, kFcfs), fair = OfTwoClients(400, 5, 1, kFair);
  const double before_s = fcfs.clients.at(1).ttft.At(0.99);
  const double after_s = fair.clients.at(1).ttft.At(0.99);
  RecordProperty("fcfs_ttft_p99_s", std::to_string(before_s));
  RecordProperty("fair_ttft_p99_s", std::to_string(after_s));
  EXPECT_LT(after_s, before_s / 20);
}

}  // namespace
}  // namespace millrace::sim
