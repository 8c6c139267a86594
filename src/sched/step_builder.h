// StepBuilder: the step plan that is being built. For one request at a time it chooses how many
// tokens of each sequence the step computes, counts the blocks that this takes, and writes the plan
// and the ledger's entries. What has no step to travel in yet (releases, copies to the host) waits
// here for the next plan.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/step_plan.h"
#include "kv/kv_cache.h"
#include "sched/kv_transfers.h"
#include "sched/request.h"
#include "sched/scheduler.h"
#include "sched/step_ledger.h"
#include "sched/step_room.h"

namespace millrace::sched {

class StepBuilder {
 public:
  // Not owned; they outlive this object.
  StepBuilder(kv::KvCache& kv, StepLedger& ledger, IncomingPulls& pulls);

  void Begin() { plan_.Clear(); }
  // Whether the plan has no sequence.
  bool empty() const { return plan_.sequences.empty(); }
  // Completes the plan. Null: it has no sequence. Valid until Begin.
  const StepPlan* Send(Time now);

  // Chooses which of the request's ready sequences the step takes, and how many tokens of each.
  // False: none.
  bool Choose(Request& request, const StepRoom& room);
  // Chooses all of its ready sequences with all that they have to compute.
  void ChooseAll(Request& request);
  // Blocks that the chosen sequences need before they can run: growth, and copies of shared blocks
  // that they write. `on_host`: they are swapped out.
  int BlocksNeeded(bool on_host) const;
  // Adds the chosen sequences to the plan. REQUIRES: the blocks are available.
  void Emit(Request& request, StepRoom& room);

  // The stages' sequence has ended. REQUIRES: no step in flight holds it.
  void Release(SequenceId id) { released_.push_back(id); }
  // Moves tables to the host and back, with the next plan. REQUIRES: there is room. Returns the
  // number of blocks.
  size_t SwapOut(std::span<const kv::SwapMove> moves);
  void SwapIn(std::span<const kv::SwapMove> moves);
  // The copies to the host that have no plan yet are not made.
  void DropSwapsOut();

 private:
  struct Share {
    Sequence* sequence = nullptr;
    int num_tokens = 0;
  };

  int ChunkOf(int remaining, int tokens_left, const StepRoom& room) const;
  void CopyBeforeWriting(Sequence& sequence);
  void EmitShare(Request& request, const Share& share);

  kv::KvCache& kv_;
  StepLedger& ledger_;
  IncomingPulls& pulls_;
  StepPlan plan_;
  std::vector<Share> shares_;         // chosen
  std::vector<SequenceId> released_;  // for the next plan
  std::vector<BlockCopy> swap_out_;   // for the next plan
};

}  // namespace millrace::sched
