// Scenario: everything that a seed decides before a schedule runs: the number of workers, the
// layers on them, the requests and their times, the faults with their victims and durations. A
// value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cluster/control/layout/layout_shape.h"
#include "core/ids.h"
#include "core/notice.h"
#include "core/plan.h"
#include "core/sampling_params.h"
#include "sched/scheduler.h"
#include "stage/testing/hash_model.h"

namespace millrace::sim::fault {

enum class FaultKind : uint8_t {
  kKill,               // a worker's process dies; a supervisor restarts it
  kVanish,             // its machine disappears without a reset: peers find out by their timeouts
  kStop,               // SIGSTOP, later SIGCONT: queued messages arrive late
  kHangCompute,        // its device hangs, its heartbeats continue
  kCut,                // a link carries nothing in either direction
  kCutOneWay,          // or in one direction only
  kSlow,               // a link has much higher latency
  kReset,              // the connections of a link break, messages in transit are lost
  kTwice,              // messages arrive a second time, later
  kSameName,           // a second process joins under a worker's name
  kLeave,              // a worker announces that it will be gone soon, and then is, or stays
  kDrain,              // an operator drains a worker
  kMigrate,            // an operator migrates a request
  kPlan,               // an operator applies another plan
  kStopController,     // the controller is stopped for a while
  kRestartController,  // or dies; its successor reads the journal
  kStill,              // a worker's computing thread stands still, its heartbeats continue
  kTwoLosses,          // two workers die within 100 ms: two faults of this kind
  kPause,              // the controller and all workers are stopped for a while, as by their host
  kRestoredStore,      // the controller dies; its successor's store has lost the terms so far
};
inline constexpr int kFaultKinds = 20;
std::string_view FaultName(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  Time at;
  Duration lasts;
  int a = 0, b = 0;        // places: the worker, the link's ends
  Duration extra;          // for a slow link or a hanging device
  bool withdrawn = false;  // of kLeave: the machine stays,
  NoticeOrigin origin;     // and who says that it goes
};

struct TestRequest {
  Time at;
  std::vector<TokenId> prompt;
  SamplingParams params;
  uint64_t seed = 0;
  std::optional<Time> abort_at;
};

struct ScenarioOptions {
  std::optional<int> faults;      // exactly this many
  std::optional<FaultKind> only;  // only of this kind
  std::optional<int> workers, requests;
  std::optional<bool> two_classes;  // workers of two bit classes
  std::optional<bool> autopilot;    // changes the plan by itself
};

struct Scenario {
  uint64_t seed = 0;
  int workers = 2;  // processes at places 1 .. workers
  stage::HashModel model;
  cluster::LayoutShape shape;     // of an automatic layout
  std::optional<Plan> plan;       // instead of an automatic layout
  std::vector<Plan> later_plans;  // for kPlan, in order
  int64_t memory_tokens = 1024;   // times layers, for KV on a worker
  bool tight_memory = false;      // a serving worker has no memory for more weights
  Duration hold_limit;            // limit for KV that is held for a move
  sched::SchedulerOptions scheduler;
  std::vector<TokenId> eos_token_ids;
  int classes = 1;  // bit classes of the workers; models of other classes have other tokens
  bool cross_class_replay = false;
  bool autopilot = false;  // changes the plan by itself
  std::vector<TestRequest> test_requests;
  std::vector<Fault> faults;
  Time quiet_at;  // all faults have ended by then

  int places() const { return workers + 3; }  // the controller, two spare
  int ClassOf(const std::string& worker) const { return std::stoi(worker.substr(1)) % classes; }
  static std::string NumericClass(int bit_class) { return "class " + std::to_string(bit_class); }
  stage::HashModel ModelOf(int bit_class) const;
  std::string FingerprintOf(int bit_class) const;  // in a cluster of kModelFingerprint
  static constexpr char kModelFingerprint[] = "hash";
};

// A plan for `workers` workers of the scenario. REQUIRES: one bit class, no tensor parallelism.
Plan RandomPlan(uint64_t seed, const Scenario& scenario, int workers);

Scenario MakeScenario(uint64_t seed, const ScenarioOptions& options);

}  // namespace millrace::sim::fault
