// HelixFlowScheduler: Helix's own scheduler as released (ASPLOS'25, section 5). A prompt's whole
// route is drawn at the coordinator by interleaved weighted round robin over the planned flows.
// Nodes whose cache would fill too far are masked, and a link carries one query at a time at its
// planned share of cards and wire. An imitation, with the original's dead ends; the production
// router is cluster/control/routing/router.h. One run; one thread.
#pragma once

#include <vector>

#include "experiments/lib/helix/helix_state.h"

namespace millrace::experiments::helix {

struct HelixKvMask {
  double high_water = 0.85;   // expected filling of a node's cache
  double output_ratio = 1.0;  // share of the mean output that a request is expected to add
  static HelixKvMask Online() { return {0.9, 0.6}; }
  static HelixKvMask Offline() { return {0.85, 1.0}; }
};

class HelixFlowScheduler : public HelixScheduler {
 public:
  // Links below this share of their sender's flow are unused.
  static constexpr double kShareMin = 0.05;

  // REQUIRES: PlanFlows was run on `cluster`.
  HelixFlowScheduler(const HelixModel& model, const HelixCluster& cluster, HelixKvMask mask);

  bool Begin(HelixState& state, HelixQueryIndex query) override;
  void Enqueue(HelixState& state, int endpoint, HelixQueryIndex query) override;
  void Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                std::vector<int>* ask_again) override;
  void End(HelixState& state, HelixQueryIndex query) override;
  std::optional<double> BottleneckUsage() const override;

 private:
  struct Sender {
    std::vector<int> links;     // with a sufficient flow
    std::vector<double> loads;  // work over weight, by link
  };

  bool Route(HelixState& state, HelixQuery& query);
  std::optional<size_t> Choose(const Sender& sender, int tokens) const;
  bool HasRoom(int node, int tokens) const;
  int ExpectedTokens(int input_tokens) const;
  void Charge(const HelixState& state, const HelixQuery& query, int sign);
  double PlannedBandwidth(const HelixModel& model, const HelixLink& link) const;

  const HelixCluster& cluster_;
  HelixKvMask mask_;
  std::vector<Sender> senders_;              // by endpoint
  std::vector<double> planned_bytes_per_s_;  // by link
  std::vector<int64_t> kv_free_;             // by node, as expected
  std::vector<HelixQueue> waiting_;          // by link
  std::vector<HelixWaiting> heads_;          // scratch of Schedule
  uint64_t enqueued_ = 0;
};

}  // namespace millrace::experiments::helix
