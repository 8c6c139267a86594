// StepLedger: the steps in flight, oldest first, and the one that is being built. An entry says
// what a step computes for one sequence, so that its result can be applied. The memory of ended
// steps is reused.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "core/time_account.h"
#include "sched/request.h"

namespace millrace::sched {

// Prompts that steps computed, or tokens computed again.
struct PromptsSent {
  uint64_t tokens = 0;  // since the start
  AccountIds ids = {};  // of the newest step that had some, the largest ones first
};

// What a step consists of, for the accounts of its requests.
struct StepLoad {
  Time sent;
  int tokens = 0;         // of all sequences
  int prompt_tokens = 0;  // of sequences with more than one
  int requests = 0;
  PromptsSent prompts;  // of this step; `tokens` is not set
  std::array<int, kAccountIdsMax> prompt_sizes = {};
  PromptsSent before;  // of all earlier steps

  void AddPrompt(RequestId id, int size);
};

class StepLedger {
 public:
  // One sequence of a step in flight.
  struct Entry {
    Sequence* sequence = nullptr;
    SequenceId id;  // the stages' id for it; not that of `sequence` after a hand-over
    int start = 0;
    int num_tokens = 0;
    uint32_t incarnation = 0;  // the KV counts only if it is unchanged
    bool samples = false;      // the token counts
  };
  struct Step {
    StepId id;
    std::vector<Entry> entries;
    StepLoad load;
  };

  explicit StepLedger(int stages);

  // The step that is being built. It keeps its id until it is sent.
  StepId next() const { return StepId(next_); }
  Entry& Add() { return building_.entries.emplace_back(); }
  StepLoad& load() { return building_.load; }
  StepId Send(Time now);
  // Of all steps that were sent.
  const PromptsSent& prompts() const { return prompts_; }

  int size() const { return static_cast<int>(steps_.size()); }
  bool empty() const { return steps_.empty(); }
  std::span<const Step> steps() const { return steps_; }
  // The next step, if none is in flight: every step before it has ended.
  StepId first_in_flight() const { return steps_.empty() ? next() : steps_.front().id; }

  // Takes a step that has ended out; nullopt if it is not in flight.
  std::optional<Step> Take(StepId id);
  void Reuse(Step step);
  // The entry of `from` in its step becomes one of `to`, whose token does not count. KV that was
  // dropped meanwhile stays unusable. REQUIRES: the step is in flight and holds `from`.
  void HandOver(StepId step, const Sequence& from, Sequence& to);

 private:
  std::vector<Step> steps_;
  std::vector<Step> spare_;
  Step building_;
  PromptsSent prompts_;
  uint64_t next_ = 1;
};

}  // namespace millrace::sched
