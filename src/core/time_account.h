// TimeAccount: where each moment of a request went, from its arrival on. Whoever has the request
// says what the time since the last entry was for, so that the entries add up to its age by
// construction. The account travels with the request between schedulers.
//
// An episode is one stay in one place, such as a run between two preemptions. Within an episode,
// time for the same use and cause is one entry, so that thousands of steps are a few entries.
//
// Owned by whoever has the request. A value; one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "core/layer_range.h"

namespace millrace {

// What the time was for.
enum class TimeUse : uint8_t {
  kPrepare,    // in the front end: its body is read and its prompt tokenized
  kQueue,      // has not started, or not where it came to, and a limit holds it up
  kPrefill,    // in steps that compute its prompt
  kDecode,     // in steps that compute one token
  kRecompute,  // in steps that compute tokens which it had already computed once
  kWait,       // runs, and is in no step
  kPreempted,  // its blocks went to others
  kSwapped,    // its KV is in the host's memory
  kRequeue,    // has left its pipeline and waits for another
  kPull,       // its KV comes from other workers
  kDeliver,    // in the front end: the end of its answer becomes text and is written
};
inline constexpr size_t kTimeUses = 11;
std::string_view TimeUseName(TimeUse use);  // "prepare", "queue", ...

// Why it took that time.
enum class TimeCause : uint8_t {
  kNone,
  // In the queue: what the first request in it lacked.
  kStep,         // the step in flight had to end
  kStepFull,     // requests before it took all that a step may have
  kBlocks,       // KV blocks; also of a request that runs
  kSequences,    // a place among the sequences that may run
  kReservation,  // KV that could be reserved
  kNoPipeline,   // workers: no pipeline was open
  kNoRoom,       // a pipeline with room
  kOtherBits,    // workers of its numeric class
  // Of a wait or a step.
  kPrompts,  // steps that computed prompts of other requests
  kTurn,     // steps of other requests
  kPaused,   // its hand-over
  // What brought the request where it is.
  kPreemption,
  kHandOver,  // its prompt was computed elsewhere
  kLoss,      // its pipeline was lost
  kMove,      // its workers were needed otherwise, or went away
  kEviction,  // its memory went to an older request
  kRestart,   // of the controller
  kSeveral,   // entries that were merged
};
std::string_view TimeCauseName(TimeCause cause);  // "", "step_in_flight", ...

// At most so many requests are named in an entry.
inline constexpr size_t kAccountIdsMax = 3;
using AccountIds = std::array<RequestId, kAccountIdsMax>;  // 0: none

struct TimeEntry {
  TimeUse use = TimeUse::kQueue;
  TimeCause cause = TimeCause::kNone;
  int steps = 0;   // of this request
  int tokens = 0;  // of this request, computed
  Duration took;
  Time begin;  // of its first part
  // In steps: tokens that others had in the same steps. In a wait: tokens of prompts of others
  // meanwhile. In the queue: prompt tokens of the requests ahead.
  int64_t others_tokens = 0;
  int others = 0;   // the most other requests in one step, or requests ahead in the queue
  int running = 0;  // in the queue: requests that had their blocks
  AccountIds ids;   // some of the others: the largest prompts, the first ahead, who took the blocks
  LayerRange layers;  // that were computed; empty: all
  int64_t bytes = 0;  // pulled
  double pull_s = 0;  // of the slowest worker's pull
  std::string from;   // workers
};

// One of the longest waits between two tokens, and what took most of it.
struct TokenGap {
  Duration took;
  int after_tokens = 0;  // output tokens before it
  TimeUse use = TimeUse::kDecode;
  TimeCause cause = TimeCause::kNone;
  int64_t others_tokens = 0;  // as in the entry, of its longest part
  AccountIds ids;
};

// Entries of an account. Beyond it, two of the same use become one, the oldest first.
inline constexpr size_t kAccountEntriesMax = 40;
inline constexpr size_t kAccountGapsMax = 3;

class TimeAccount {
 public:
  // What a part of the time was spent with.
  struct Beside {
    int64_t others_tokens = 0;
    int others = 0;
    const AccountIds* ids = nullptr;
  };

  TimeAccount() = default;
  explicit TimeAccount(Time begin) : begin_(begin), until_(begin), begun_(true) {}

  bool begun() const { return begun_; }
  Time begin() const { return begin_; }
  // Everything before is accounted for.
  Time until() const { return until_; }
  std::span<const TimeEntry> entries() const { return entries_; }
  // The longest first.
  std::span<const TokenGap> gaps() const { return {gaps_.data(), gaps_kept_}; }
  int64_t gaps_counted() const { return gaps_counted_; }
  Duration gaps_sum() const { return gaps_sum_; }
  // What brought the request where it is.
  TimeCause because() const { return because_; }

  // The request is somewhere else, or in another state, because of this.
  void Enter(TimeCause because) {
    because_ = because;
    NewEpisode();
  }
  void NewEpisode() {
    episode_ = entries_.size();
    current_ = episode_;
  }
  // The entry of this use and cause in the episode; a new one if there is none.
  TimeEntry& At(TimeUse use, TimeCause cause);
  // The time until `now` went into this. Time that goes back counts as nothing.
  TimeEntry& Spend(TimeUse use, TimeCause cause, Time now, const Beside& beside);
  TimeEntry& Spend(TimeUse use, TimeCause cause, Time now) {
    return Spend(use, cause, now, Beside());
  }
  // The entry that was used last. REQUIRES: there is one.
  TimeEntry& Last() { return entries_[current_]; }
  // The request has a new token, this long after the one before it. 0: there is none, or it came at
  // the same time.
  void Token(Duration gap, int tokens_before);

  // Crashes unless the entries add up to the time since `begin`.
  void CheckIntegrity() const;

 private:
  void MergeTwo();
  void KeepGap(const TokenGap& gap);

  Time begin_, until_;
  bool begun_ = false;
  TimeCause because_ = TimeCause::kNone;
  // The longest part since the last token.
  TimeUse longest_use_ = TimeUse::kDecode;
  TimeCause longest_cause_ = TimeCause::kNone;
  uint32_t gaps_kept_ = 0;
  Duration longest_;
  int64_t longest_others_tokens_ = 0;
  size_t episode_ = 0;  // its first entry
  size_t current_ = 0;  // the entry that was used last
  std::vector<TimeEntry> entries_;
  int64_t gaps_counted_ = 0;
  Duration gaps_sum_;
  AccountIds longest_ids_ = {};
  std::array<TokenGap, kAccountGapsMax> gaps_ = {};
};

}  // namespace millrace
