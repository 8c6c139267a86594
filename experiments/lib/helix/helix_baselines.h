// The schedulers that Helix (ASPLOS'25, section 6) compares itself with, as released. Each hop is
// chosen when a prompt is about to leave for it, decodes follow their prompt, and a link takes what
// its wire and an even share of the sender's card allow. An imitation. One run; one thread.
#pragma once

#include <queue>
#include <vector>

#include "experiments/lib/helix/helix_state.h"
#include "experiments/lib/helix/python_random.h"

namespace millrace::experiments::helix {

// Picks a free link at random; with kShortestQueue only among links to nodes with the shortest
// queue.
class HelixRandomScheduler : public HelixScheduler {
 public:
  enum class Choice { kAny, kShortestQueue };

  // `random` outlives this: the feeder draws lengths from the same stream. REQUIRES: no dead ends.
  HelixRandomScheduler(const HelixCluster& cluster, Choice choice, PythonRandom* random);

  bool Begin(HelixState&, HelixQueryIndex) override { return true; }
  void Enqueue(HelixState& state, int endpoint, HelixQueryIndex query) override;
  void Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                std::vector<int>* ask_again) override;

 private:
  struct FreeLink {
    int link = 0;
    double bytes_per_s = 0;
    bool allowed = true;  // for prompts
    std::optional<HelixQueryIndex> query;
  };

  void Allow(const HelixState& state, int endpoint);
  void TakeDecodes(uint64_t before);
  void PlacePrompt(HelixState& state, int endpoint, HelixQueryIndex query);

  Choice choice_;
  PythonRandom* random_;
  std::vector<HelixQueue> decodes_;  // by link
  std::vector<HelixQueue> prompts_;  // by endpoint
  std::vector<FreeLink> free_;       // scratch of Schedule
  uint64_t enqueued_ = 0;
};

// SWARM parallelism's stochastic wiring (ICML'23, appendix C): stride scheduling over the outgoing
// links by a moving average of the measured time to the far end of the next node.
class HelixSwarmScheduler : public HelixScheduler {
 public:
  static constexpr double kInitialPriority = 0.05;
  static constexpr double kSmoothing = 0.8;  // the weight of the newest measurement

  // REQUIRES: no dead ends (DropDeadEnds).
  explicit HelixSwarmScheduler(const HelixCluster& cluster);

  bool Begin(HelixState&, HelixQueryIndex) override { return true; }
  void Enqueue(HelixState& state, int endpoint, HelixQueryIndex query) override;
  void Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                std::vector<int>* ask_again) override;

 private:
  using Stride = std::pair<double, int>;  // priority, link: the lowest goes first
  struct Sender {
    std::priority_queue<Stride, std::vector<Stride>, std::greater<>> strides;
    std::vector<HelixQueryIndex> fresh;  // ready and without a link
  };

  void Measure(HelixState& state, const Sender& sender, std::vector<int>* ask_again);
  void Assign(HelixState& state, int endpoint, Sender& sender);

  std::vector<Sender> senders_;                       // by endpoint
  std::vector<double> mean_s_;                        // by link
  std::vector<std::deque<HelixQueryIndex>> waiting_;  // by link
};

}  // namespace millrace::experiments::helix
