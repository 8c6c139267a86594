// HelixSimulator: an imitation of the discrete-event simulator released with Helix (ASPLOS'25), for
// comparison with its published tables. A node runs one layer of one batch at a time, queries that
// enter at a later layer join at that layer, and links carry one query at a time at planned
// bandwidth. It uses none of this project's scheduler, cache or router. One run; one thread.
//
// Its clock is a double, like the original's, and sums are added in the original's order: on a
// planned cluster many events coincide, and the last bit of their times decides which comes first.
// A clock of nanoseconds would create ties that the original does not have, and half an hour of
// simulated time would end differently (a 95th percentile by 6 %).
#pragma once

#include <cstdint>
#include <vector>

#include "experiments/lib/helix/helix_state.h"
#include "sim/load/quantiles.h"
#include "sim/machines/event_queue.h"

namespace millrace::experiments::helix {

class HelixSimulator;

// The source of queries.
class HelixFeeder {
 public:
  virtual ~HelixFeeder() = default;
  virtual void Start(HelixSimulator& simulator) = 0;
  virtual void Arrived(HelixSimulator&) {}     // a query arrived at the coordinator
  virtual void PromptDone(HelixSimulator&) {}  // a query's first token is out
  virtual void QueryDone(HelixSimulator&) {}   // its last token is out
};

// Counts the iterations that end in the measured window.
struct HelixReport {
  double window_s = 0;
  int64_t prompt_tokens = 0, decode_tokens = 0;
  sim::Quantiles prompt_s,
      decode_s;                // from the start of an iteration to its token at the coordinator
  sim::Quantiles residence_s;  // of finished queries, from arrival on
  int64_t rejected = 0;        // in the whole run: no route with room in its caches
  int64_t kv_overflows = 0;    // in the whole run: iterations that found a cache full
  int64_t events = 0;

  double DecodeTokensPerS() const { return static_cast<double>(decode_tokens) / window_s; }
  double PromptTokensPerS() const { return static_cast<double>(prompt_tokens) / window_s; }
  // Adds another run at the same time on other machines.
  void Add(const HelixReport& other);
};

class HelixSimulator {
 public:
  static constexpr size_t kQueriesMax = 1 << 20;  // live at the same time

  // All arguments outlive this. REQUIRES: every node's kind is in model.gpus.
  HelixSimulator(const HelixModel& model, const HelixCluster& cluster, HelixScheduler& scheduler,
                 HelixFeeder& feeder);

  // Runs from `begin_s` on its clock to the end of the window. Once.
  HelixReport Run(double warm_up_s, double window_s, double begin_s = 0);

  // For feeders. REQUIRES: at >= now().
  void Submit(double at_s, int input_tokens, int output_tokens);
  double now_s() const { return state_.now_s; }
  const HelixScheduler& scheduler() const { return scheduler_; }

 private:
  enum class Kind : uint8_t {
    kIssue,
    kStartSending,
    kFinishSending,
    kFinishTransmission,
    kGather,
    kStartExecution,
    kFinishExecution,
  };
  struct Event {
    Kind kind;
    int32_t index;  // endpoint, node or query, by kind
  };

  // A computing node. Layers count from the node's own first layer.
  struct Node {
    std::vector<std::vector<HelixQueryIndex>> queues;  // by the layer they wait for
    std::vector<HelixQueryIndex> batch;                // running
    int layer = 0;
    int64_t tokens_to_copy = 0;  // that arrived since the first layer last ran
    int64_t kv_free = 0;
    int prompt_requests_max = 0, decode_tokens_max = 0;
    const HelixGpu* gpu = nullptr;
  };

  void Push(double at_s, Kind kind, int index) { events_.Push(at_s, {kind, index}); }
  void PushNow(Kind kind, int index) { Push(state_.now_s, kind, index); }
  void Handle(const Event& event);
  void Issue(HelixQueryIndex query);
  void StartSending(int endpoint);
  void Send(const HelixSend& send);
  void FinishSending(HelixQueryIndex query);
  void FinishTransmission(HelixQueryIndex query);
  void Gather();
  void EndIteration(HelixQueryIndex query);
  void EndQuery(HelixQueryIndex query);
  void StartExecution(int node);
  double FormBatch(Node& node);
  void FinishExecution(int node);
  static void MarchOn(Node& node);
  void CountEntry(int node);

  HelixState state_;
  HelixScheduler& scheduler_;
  HelixFeeder& feeder_;
  sim::EventQueue<Event, double> events_;
  std::vector<Node> nodes_;
  std::vector<HelixQueryIndex> free_queries_, gathered_;
  std::vector<HelixSend> sends_;
  std::vector<int> ask_again_;
  std::vector<HelixQueryIndex> leftover_;
  double window_begin_s_ = 0, window_end_s_ = 0;
  HelixReport report_;
};

}  // namespace millrace::experiments::helix
