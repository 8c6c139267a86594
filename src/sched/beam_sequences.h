// BeamSequences: the sequences of a beam search (vLLM section 4.4). Each has one beam. Once all of
// them have offered their candidates, the beams go on: a sequence whose beam ends without a child
// becomes a copy of another one, over the same blocks. It copies the last of them when it writes
// (copy-on-write), as after the fork of a prompt. To a stage the copy is a new sequence.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "core/output.h"
#include "kv/kv_cache.h"
#include "sched/request.h"
#include "sched/step_builder.h"

namespace millrace::sched {

class BeamSequences {
 public:
  // Not owned; they outlive this object. `next_sequence`: the next free id.
  BeamSequences(kv::KvCache& kv, StepBuilder& builder, uint64_t& next_sequence)
      : kv_(kv), builder_(builder), next_sequence_(next_sequence) {}

  // Takes what a step returned for a beam. True: all beams of the request have offered. An offer
  // counts only if its KV is `kept` and the request runs; else its last token is computed again.
  bool Offer(Sequence& sequence, const PositionLogprobs& candidates, bool kept);
  // The next beams, if the search goes on: one more token for each. Returns the sequences that have
  // no beam any more; they must be discarded. REQUIRES: all have offered. One remains in any case.
  std::vector<Sequence*> Advance(Request& request);
  // Whether the last Advance ended the search. Then each of its answers that was not delivered
  // before has an output, and the sequence that remains ends with the last of them.
  bool ended() const { return ended_; }
  std::vector<RequestOutput> TakeOutputs() { return std::move(outputs_); }

 private:
  void Fork(const Sequence& parent, Sequence& child);
  void Answer(Request& request);

  kv::KvCache& kv_;
  StepBuilder& builder_;
  uint64_t& next_sequence_;
  bool ended_ = false;
  std::vector<RequestOutput> outputs_;
};

}  // namespace millrace::sched
