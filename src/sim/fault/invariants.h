// Invariants: what must hold after every event of a fault schedule, and once it has grown quiet.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::sim::fault {

enum class Invariant : uint8_t {
  kBlocksAddUp,         // every lane's scheduler: each block accounted for, every count right
  kEndsOnce,            // an accepted request's sequence ends in one way, and nothing comes after
  kEndsInTime,          // and does so, once faults are over
  kTokensInOrder,       // a token is told once, in order, and is the reference's
  kAnswerIsWhole,       // an answer ends where the reference does
  kNoNeedlessError,     // a request fails only when its lanes were lost twice over
  kFence,               // nothing runs or is written in a lane that is closed
  kOneOwner,            // one lane runs a request at a time
  kQueuesBounded,       // what waits stays below its limit
  kNoStarvation,        // a request that could run moves
  kMembersAreSessions,  // the controller's workers are the connections in force
  kNamesGrow,           // terms, workers, lanes: never reused, never smaller
  kStaleIsCounted,      // what names a lane that is gone changes a counter and nothing else
  kNothingLeft,  // when idle: no block in use or pinned, nothing exposed, no pull, no lane lost
  kShardsArePlanned,  // when quiet: workers hold what the layout says, every layer is up
  kPlansRun,          // a worker's stage refuses no plan that the worker accepted
  kNoFaultNoLoss,     // without a fault nothing is lost, replayed or refused
};
inline constexpr int kInvariants = 17;
std::string_view InvariantName(Invariant invariant);

// What a test plants to see it found.
enum class Defect : uint8_t {
  kNone,
  kLateSteps,    // a step's result goes to whichever lane is there, whatever it names
  kLoseNews,     // a piece of news never reaches the client
  kTwiceTold,    // the last news of a request comes twice
  kEarlyEnd,     // a request ends with its first token
  kFailRequest,  // a request fails for nothing
  kKeepHeld,     // the order to release KV is lost
  kDropClose,    // the order to close a lane is lost
  kKeepShard,    // the order to unload a shard is lost
  kKeepSession,  // a worker whose connection is gone stays a member
  kOldTerm,      // a new controller takes the old one's term
  kIdle,         // a controller forms no steps after its first restart
  kSkipBlock,    // a step's table keeps more blocks than there are
  kWrongBlock,   // a step's table names a block that is another's
  kMissBox,      // a pull is said to be complete without one of its boxes
  kGhostWrite,   // KV is written into a lane after it was closed
  kDropSession,  // a session is dropped though nothing is wrong
  kWrongRows,    // rows that are sent again are not those that were sent
};
inline constexpr int kDefects = 18;

// The first that broke.
struct Violation {
  Invariant invariant = Invariant::kBlocksAddUp;
  std::string what;
  uint64_t event = 0;
  double at_s = 0;
};

}  // namespace millrace::sim::fault
