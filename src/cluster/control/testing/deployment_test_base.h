// DeploymentTest: a test fixture with a Deployment and its messages. Workers are numbered; nothing
// answers unless the test does. One thread.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cluster/control/layout/deployment.h"

namespace millrace::cluster {

// Stages in the order of their layers: one that begins at layer 0 begins a chain.
inline Plan PlanOf(const std::vector<LayerRange>& stages, int tensor_parallel = 1) {
  Plan plan{.num_layers = 4};
  for (int i = 0; i < std::ssize(stages); ++i) {
    const LayerRange layers = stages[static_cast<size_t>(i)];
    plan.stages.push_back({.tensor_parallel = tensor_parallel, .layers = layers});
    plan.edges.push_back({layers.begin == 0 ? std::nullopt : std::optional(i - 1), i, 1});
    if (layers.end == 4) plan.edges.push_back({i, std::nullopt, 1});
  }
  return plan;
}

class DeploymentTest : public ::testing::Test {
 protected:
  explicit DeploymentTest(const DeploymentOptions& options = Options())
      : deployment_(options, {}, members_, ids_, outbox_) {}

  static constexpr LayerRange kAll{0, 4}, kFront{0, 2}, kBack{2, 4};

  void Start(Plan plan, bool automatic = false) {
    Layout layout = MakeLayout(std::move(plan), {}).value();
    layout.automatic = automatic;
    deployment_.Begin(std::move(layout));
    Reconcile();
  }
  void Begin(Plan plan) { deployment_.Begin(MakeLayout(std::move(plan), {}).value()); }
  void Join(uint64_t worker) {
    millrace::Join join;
    join.name = "w" + std::to_string(worker);
    members_.Add(WorkerId(worker), ConnectionId(worker), std::move(join), now_);
    deployment_.WorkerJoined();
  }
  void Lose(uint64_t worker) {
    members_.Remove(WorkerId(worker));
    deployment_.WorkerLost(WorkerId(worker));
  }
  Deployment::LoadResult Loaded(uint64_t worker, Status status = OkStatus()) {
    return deployment_.ShardLoaded(WorkerId(worker),
                                   {.shard = loads_.at(worker).shard, .status = std::move(status)});
  }
  // Acts, and keeps the orders to load as loads_, and the others as text.
  Deployment::Changes Reconcile() {
    const Deployment::Changes changes = deployment_.Reconcile(in_use_, now_);
    deployment_.CheckIntegrity();
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    for (const ControllerAction& action : actions) {
      const auto& send = std::get<SendToWorker>(action);
      const std::string to = "w" + std::to_string(send.to.value());
      if (const auto* load = std::get_if<LoadShard>(&send.message)) {
        loads_[send.to.value()] = *load;
        sent_ += to + " load " + std::to_string(load->layers.begin) + "-" +
                 std::to_string(load->layers.end - 1) + "; ";
      } else if (std::holds_alternative<UnloadShard>(send.message)) {
        sent_ += to + " unload; ";
      } else if (const auto* leave = std::get_if<Leave>(&send.message)) {
        sent_ += to + " leave: " + leave->reason + "; ";
      }
    }
    return changes;
  }
  std::string Sent() { return std::exchange(sent_, ""); }

  static DeploymentOptions Options() {
    DeploymentOptions options;
    options.model = "m";
    options.num_layers = 4;
    options.shape.stages = 2;
    return options;
  }

  Membership members_{MembershipOptions{}};
  IdSource ids_{Term(1)};
  Outbox outbox_{members_};
  Deployment deployment_;
  Deployment::InUse in_use_;
  Time now_;
  std::map<uint64_t, LoadShard> loads_;  // the last one by worker
  std::string sent_;
};

}  // namespace millrace::cluster
