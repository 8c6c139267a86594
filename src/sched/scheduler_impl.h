// The scheduler: what it decides, over parts that own their state. request_table.h has the
// requests, step_ledger.h the steps in flight, step_room.h what the next step may have,
// step_builder.h the plan being built, waiting_order.h who is next, prompt_forks.h and
// beam_sequences.h the KV that the sequences of a prompt share,
// reservations.h what is promised, kv_transfers.h what is pulled or held. The methods by file:
//   scheduler.cc  options, Add                schedule.cc   the next step from what runs
//   mix_*.cc      composition of a step
//   admission.cc  which requests may start    preemption.cc which are preempted
//   commit.cc     applies a step's result     lifecycle.cc  finish, abort, retire
//   handoff.cc    KV that is imported from another stage
//   detach.cc     requests that leave to continue elsewhere
//   inspect.cc    read-only views
// Private to this folder.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "sched/accounting.h"
#include "sched/beam_sequences.h"
#include "sched/inspection.h"
#include "sched/kv_transfers.h"
#include "sched/prompt_forks.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/reservations.h"
#include "sched/result_check.h"
#include "sched/scheduler.h"
#include "sched/step_builder.h"
#include "sched/step_ledger.h"
#include "sched/waiting_order.h"

namespace millrace::sched {

class SchedulerImpl : public Scheduler {
 public:
  explicit SchedulerImpl(const SchedulerOptions& options);

  Status Add(NewRequest request, Time now) override;
  void Abort(RequestId id, std::optional<int> index, Time now,
             std::vector<RequestOutput>& outputs) override;
  NextStep Schedule(Time now, std::vector<KvPull>& pulls) override;
  Status Commit(const StepResult& result, Time now, std::vector<RequestOutput>& outputs,
                std::vector<KvPull>& pulls) override;
  int steps_in_flight() const override { return ledger_.size(); }
  bool HasWork() const override { return !requests_.empty(); }
  SchedulerStats Stats() const override;
  int blocks_in_use() const override { return kv_.device().in_use(); }
  std::optional<RequestInfo> Inspect(RequestId id, Time now) const override;
  std::vector<RequestInfo> InspectAll(Time now) const override;
  std::optional<TimeAccount> Account(RequestId id, Time now) const override {
    return accounting_.Account(id, now);
  }
  TimeAccount* AccountOf(RequestId id) override { return accounting_.AccountOf(id); }
  void KvArrived(RequestId id, bool complete, Time now) override;
  void KvArrivedWithout(RequestId id, LayerRange lacking, Time now) override;
  std::vector<BlockIndex> HeldBlocks(RequestId id) const override { return holds_.BlocksOf(id); }
  Status ExtendImport(RequestId id, const std::vector<ResumedSequence>& more,
                      const std::vector<int>& imported_tokens, std::vector<KvPull>& pulls) override;
  void CloseImport(RequestId id, Time now) override;
  bool ExtendHold(RequestId id, Time now, Duration hold_kv) override {
    return holds_.Extend(id, now, hold_kv);
  }
  void ReleaseKv(RequestId id) override { holds_.Release(id); }
  std::optional<DetachedRequest> Export(RequestId id, Time now, Duration hold_kv) override;
  void Pause(RequestId id) override;
  bool AtRest(RequestId id) const override;
  void Unpause(RequestId id) override;
  std::optional<DetachedRequest> Peek(RequestId id) const override;
  std::optional<DetachedRequest> Detach(RequestId id, Time now,
                                        std::optional<Duration> hold_kv) override;
  std::vector<DetachedRequest> DetachAll(Time now) override;
  int CachedTokens(std::span<const TokenId> prompt, std::string_view salt,
                   kv::PrefixChain& names) override {
    return kv_.CachedTokens(prompt, salt, names);
  }
  int LimitBlocks(int limit) override {
    const kv::BlockPool& pool = kv_.device();
    return kv_.SetLimit(
        std::max(limit, std::min(pool.in_use() + forks_.promised_blocks(), pool.limit())));
  }
  std::vector<BlockIndex> TakeReturned() override;
  bool LacksBlocks() const override { return lacks_blocks_ && requests_.pulling().empty(); }
  void LimitSteps(const StepLimits& limits) override { limits_ = limits; }
  void SetCosts(const PreemptionCosts& costs) override { options_.costs = costs; }
  void ResetPrefixCache() override { kv_.ResetPrefixes(); }
  std::optional<RequestInfo> Stalled(Time now) const override;
  void CheckIntegrity() const override;

 private:
  enum class Grant { kGranted, kWait, kPreempted };

  // mix_mixed.cc, mix_prefill_first.cc
  void PrefetchAfter(size_t position) const;
  void FillMixed(StepRoom& room, Time now);
  void FillPrefillFirst(StepRoom& room, Time now);
  void FillPrompts(StepRoom& room, Time now);
  void FillDecodes(StepRoom& room);

  // schedule.cc
  void ScheduleRunning(size_t position, StepRoom& room);

  // admission.cc
  void AdmitWaiting(StepRoom& room, Time now);
  Verdict Consider(Request& request);
  Verdict ConsiderFresh(Request& request);
  Verdict ConsiderSwapped(Request& request);
  Verdict VerdictFor(const Request& request, int needed) const;
  void StartFresh(Request& request);
  void SwapIn(Request& request);

  // preemption.cc
  Grant Obtain(Request& request, int blocks, StepRoom& room);
  bool GrowReservation(Request& request, int blocks, StepRoom& room);
  void Preempt(Request& victim, const Request& beneficiary, int blocks_needed, StepRoom& room);
  void SwapOut(Request& victim);

  // commit.cc
  void Apply(const StepLedger::Step& step, const StepLedger::Entry& entry, const Status& step_error,
             const SequenceResult* result, Time now, std::vector<RequestOutput>& outputs);
  void AdvanceComputed(const StepLedger::Entry& entry);
  void IndexPrefixes(Sequence& sequence);
  void NoteOutput(Request& request, int tokens, Time now);
  void TakeOutput(Sequence& sequence, const SequenceResult& result, Time now,
                  std::vector<RequestOutput>& outputs);
  void TakeBeam(Sequence& sequence, const SequenceResult& result, bool kept, Time now,
                std::vector<RequestOutput>& outputs);
  void Fail(Sequence& sequence, const Status& error, std::vector<RequestOutput>& outputs);

  // lifecycle.cc
  void End(Sequence& sequence, FinishReason reason, RequestOutput& output);
  void Discard(Sequence& sequence);
  void LeaveOthers(Sequence& sequence);
  void Retire(Request& request);
  void Reap(Request& request);

  // handoff.cc
  bool StartPulling(Request& request);
  void MaybeEndImport(Request& request, Time now);
  void EndImport(Request& request);
  void DropUnsentSwaps();
  void HoldKv(const Sequence& sequence);

  // detach.cc
  DetachedRequest MakeDetached(const Request& request, std::optional<Time> hold_until);
  void Leave(Request& request);

  // inspect.cc
  SchedulerView View() const;

  SchedulerOptions options_;
  StepLimits limits_;
  kv::KvCache kv_;
  PromptForks forks_;
  Reservations reservations_;
  IncomingPulls pulls_;
  KvHolds holds_;
  int watermark_blocks_ = 0;

  RequestTable requests_;
  WaitingOrder order_;
  StepLedger ledger_;
  StepBuilder builder_;
  BeamSequences beams_{kv_, builder_, next_sequence_};
  Accounting accounting_{requests_, ledger_};
  bool lacks_blocks_ = false;  // a request was left out of the last Schedule
  // For StepMix::kPrefillFirst.
  int prompt_steps_ = 0;        // since the last step of decodes
  bool decodes_short_ = false;  // the last one lacked blocks

  std::vector<kv::SwapMove> moves_;  // kept to reuse its memory

  SchedulerStats stats_;
  uint64_t next_sequence_ = 1;
  ResultCheck results_{options_.check_results, options_.eos_token_ids};
  Time last_moved_;  // when a step was last built or applied, or work was added to an idle
                     // scheduler
};

}  // namespace millrace::sched
