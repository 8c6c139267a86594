// What the tests of layouts share: the test requests, their answers by a plain engine, and a
// cluster of real model stages in this process that is asked the same.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/runtime/local_cluster.h"
#include "cluster/runtime/testing/stream_answers.h"

namespace millrace {

using TestRequests = std::vector<cluster::GenerationRequest>;

// Greedy and seeded by turns; of different lengths, with shared prefixes, several sequences,
// penalties, log-probabilities, constrained outputs, vectors. The same every time.
const TestRequests& ManyRequests();
// One greedy, one seeded and constrained, one of two sequences: each of exactly so many tokens.
inline constexpr int kStreamTokens = 24;
const TestRequests& FewStreams();

// By one thread of one process, one test request at a time, without a prefix cache. As text:
// tokens, why they ended, and every bit of every log-probability and vector.
std::vector<std::string> AnswersAlone(const TestRequests& test_requests);
std::string TextOf(const cluster::StreamAnswers::One& answer);

inline constexpr StageRole kPrefill = StageRole::kPrefill, kDecode = StageRole::kDecode;
struct StageSpec {
  LayerRange layers;
  int tensor_parallel = 1;
  StageRole role = StageRole::kBoth;
};
inline constexpr int kLayers = 4;  // of the demo model
// Without `edges` a chain.
Plan PlanOf(const std::vector<StageSpec>& stages, std::vector<PlanEdge> edges = {});

class LayoutTest : public ::testing::Test {
 protected:
  // Called as news comes, on the controller's thread: what test request, which sequence, how many
  // tokens it has now. No call is left to come once the answers are over.
  using OnDelivered = std::function<void(size_t test_request, int index, size_t tokens)>;

  void Start(std::optional<Plan> plan, int automatic_stages = 1);
  std::string AddWorker();  // its name
  // For the next Start: blocks of KV for a pipeline at most, and as many again in host memory,
  // where sequences that give way are kept.
  void Squeeze(int num_blocks);
  // As many as the plan needs; returns when every way is open.
  void StartWithWorkers(const Plan& plan);
  void Ask(const TestRequests& test_requests, OnDelivered on_delivered = {});
  // Waits for the answers, compares them, and looks for what was left behind.
  void ExpectAnswers(const std::vector<std::string>& expected);
  void ExpectManyAnswers();

  bool WaitFor(const std::function<bool(const cluster::ClusterStatus&)>& wanted);
  cluster::ClusterStatus Describe() { return cluster_->host().Describe(); }
  cluster::ControllerCounters Counters() { return Describe().counters; }

  std::shared_ptr<cluster::StreamAnswers> answers_;  // requests may outlive a failed wait
  std::vector<RequestId> ids_;
  SteadyClock clock_;
  std::unique_ptr<cluster::LocalCluster> cluster_;

 private:
  sched::SchedulerOptions scheduler_ = DefaultScheduler();
  static sched::SchedulerOptions DefaultScheduler();
  void ExpectNothingLeft();
  bool PipelinesAgree(const cluster::ClusterStatus& status);
  int workers_added_ = 0;
};

}  // namespace millrace
