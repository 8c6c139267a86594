// Scenario: everything a seed decides before a schedule runs: how many workers, how the layers lie
// on them, who asks what and when, which faults strike whom and for how long. A value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "core/plan.h"
#include "core/sampling_params.h"
#include "engine/hash_model.h"
#include "sched/scheduler.h"

namespace millrace::sim::fault {

enum class FaultKind : uint8_t {
  kKill,               // a worker's process dies; a supervisor starts it again
  kVanish,             // its machine goes without a word: peers find out by their timeouts
  kStop,               // SIGSTOP, later SIGCONT: what was queued arrives late
  kHangCompute,        // its device hangs, its heartbeats go on
  kCut,                // a link carries nothing, either way
  kCutOneWay,          // or one way only
  kSlow,               // a link has much more latency
  kReset,              // the connections of a link break, what was under way is lost
  kTwice,              // messages arrive a second time, later
  kSameName,           // a second process joins under a worker's name
  kLeave,              // a worker says that it will be gone soon, and is
  kDrain,              // an operator drains a worker
  kMigrate,            // an operator moves a request
  kPlan,               // an operator applies another plan
  kStopController,     // the controller is stopped for a while
  kRestartController,  // or dies; a new one reads the journal
};
inline constexpr int kFaultKinds = 16;
std::string_view FaultName(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  Time at;
  Duration lasts;
  int a = 0, b = 0;  // places: the worker, the link's ends
  Duration extra;    // of a slow link, a hanging device
};

struct Question {
  Time at;
  std::vector<TokenId> prompt;
  SamplingParams params;
  uint64_t seed = 0;
  std::optional<Time> abort_at;
};

struct ScenarioOptions {
  std::optional<int> faults;      // exactly so many
  std::optional<FaultKind> only;  // of this kind
  std::optional<int> workers, requests;
};

struct Scenario {
  uint64_t seed = 0;
  int workers = 2;  // processes at places 1 .. workers
  engine::HashModel model;
  int stages = 1, tensor_parallel = 1;
  std::optional<Plan> plan;       // instead of an automatic layout
  std::vector<Plan> later_plans;  // for kPlan, in turn
  int64_t memory_tokens = 1024;   // times layers, for KV on a worker
  Duration hold_limit;            // KV kept for a move
  sched::SchedulerOptions scheduler;
  std::vector<TokenId> eos_token_ids;
  std::vector<Question> questions;
  std::vector<Fault> faults;
  Time quiet_at;  // every fault has ended

  int places() const { return workers + 3; }  // the controller, two to spare
};

Scenario MakeScenario(uint64_t seed, const ScenarioOptions& options);

}  // namespace millrace::sim::fault
