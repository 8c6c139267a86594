// Invariants: what must hold after every event of a fault schedule, and once it is quiet.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::sim::fault {

enum class Invariant : uint8_t {
  kBlocksAddUp,         // every pipeline's scheduler: each block accounted for, every count right
  kEndsOnce,            // an accepted request's sequence ends in one way, and no output follows
  kEndsInTime,          // and does so once faults are over
  kTokensInOrder,       // a token is delivered once, in order, and is the reference's
  kAnswerIsWhole,       // an answer ends where the reference does
  kNoNeedlessError,     // a request fails only when its pipelines were lost twice
  kFence,               // nothing runs or is written in a closed pipeline
  kOneOwner,            // one pipeline runs a request at a time
  kQueuesBounded,       // queues stay below their limits
  kNoStarvation,        // a request that could run makes progress
  kMembersAreSessions,  // the controller's workers are the current connections
  kNamesGrow,           // terms, workers, pipelines: never reused, never decreasing
  kStaleIsCounted,      // a message for a closed pipeline changes only a counter
  kNothingLeft,       // when idle: no block in use or pinned, no export, no pull, no lost pipeline
  kShardsArePlanned,  // when quiet: workers hold what the layout says, every layer is served
  kPlansRun,          // no worker refuses a plan, and every plan runs
  kOneClass,          // no activations and no KV cross bit classes, and tokens only if allowed
  kNoFaultNoLoss,     // without a fault nothing is lost, replayed or refused
  // Without a fault, whatever the autopilot decides:
  kDecisionsKeepWorkers,   // no worker is lost or refused
  kDecisionsFailNoRequest  // no request fails
};
inline constexpr int kInvariants = 20;
std::string_view InvariantName(Invariant invariant);

// The defects that tests plant, to see that they are detected.
enum class Defect : uint8_t {
  kNone,
  kLateSteps,         // a step's result goes to any open pipeline, whichever it names
  kLoseOutput,        // an output never reaches the client
  kDeliveredTwice,    // the last output of a request is delivered twice
  kEarlyEnd,          // a request ends with its first token
  kFailRequest,       // a request fails without a cause
  kKeepHeld,          // the message to release KV is lost
  kDropClose,         // the message to close a pipeline is lost
  kKeepShard,         // the message to unload a shard is lost
  kKeepSession,       // a worker whose connection is gone remains a member
  kOldTerm,           // a new controller uses the previous term
  kIdle,              // a controller forms no steps after its first restart
  kSkipBlock,         // a step's table keeps more blocks than exist
  kWrongBlock,        // a step's table names a block of another sequence
  kMissBox,           // a pull is reported complete without one of its boxes
  kGhostWrite,        // KV is written into a closed pipeline
  kDropSession,       // a session is dropped without a cause
  kWrongActivations,  // resent activations differ from those first sent
  kSilentLoad,        // a worker that cannot load weights does not report it
  kFalseClass,        // workers of another class say that they are of the first
};
inline constexpr int kDefects = 20;

// The first violation.
struct Violation {
  Invariant invariant = Invariant::kBlocksAddUp;
  std::string what;
  uint64_t event = 0;
  double at_s = 0;
};

}  // namespace millrace::sim::fault
