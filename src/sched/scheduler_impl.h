// SchedulerImpl: decides what runs next, over parts that own their state. request_table.h has the
// requests, step_ledger.h the steps in flight, step_room.h what the next step may have,
// step_builder.h the plan being built, waiting_order.h who is next, preemption.h who gives way,
// step_results.h what results do, endings.h how sequences end, imports.h the KV that comes from
// other stages, prompt_forks.h the KV that the sequences of a prompt share, reservations.h what is
// promised, kv_transfers.h what is pulled or held. The methods by file:
//   scheduler.cc  options, Add                schedule.cc   forms steps, commits results
//   mix_*.cc      composition of a step       admission.cc  which requests may start
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
#include "sched/endings.h"
#include "sched/imports.h"
#include "sched/inspection.h"
#include "sched/kv_transfers.h"
#include "sched/preemption.h"
#include "sched/prompt_forks.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/reservations.h"
#include "sched/scheduler.h"
#include "sched/step_builder.h"
#include "sched/step_ledger.h"
#include "sched/step_results.h"
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
  void KvArrived(RequestId id, bool complete, Time now) override {
    imports_.KvArrived(id, complete, now);
  }
  void KvArrivedWithout(RequestId id, LayerRange lacking, Time now) override {
    imports_.KvArrivedWithout(id, lacking, now);
  }
  std::vector<BlockIndex> HeldBlocks(RequestId id) const override { return holds_.BlocksOf(id); }
  Status ExtendImport(RequestId id, const std::vector<ResumedSequence>& more,
                      const std::vector<int>& imported_tokens,
                      std::vector<KvPull>& pulls) override {
    return imports_.Extend(id, more, imported_tokens, pulls);
  }
  void CloseImport(RequestId id, Time now) override { imports_.Close(id, now); }
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

  // detach.cc
  DetachedRequest MakeDetached(const Request& request, std::optional<Time> hold_until);

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
  Accounting accounting_{requests_, ledger_};
  bool lacks_blocks_ = false;  // a request was left out of the last Schedule
  // For StepMix::kPrefillFirst.
  int prompt_steps_ = 0;        // since the last step of decodes
  bool decodes_short_ = false;  // the last one lacked blocks

  SchedulerStats stats_;
  uint64_t next_sequence_ = 1;
  Time last_moved_;  // when a step was last built or applied, or work was added to an idle
                     // scheduler

  Endings endings_{
      {kv_, requests_, order_, ledger_, builder_, forks_, reservations_, holds_, stats_}};
  Preemption preemption_{{options_, kv_, requests_, ledger_, builder_, forks_, reservations_,
                          pulls_, accounting_, stats_}};
  Imports imports_{{kv_, requests_, ledger_, forks_, pulls_, accounting_, endings_, last_moved_}};
  StepResults results_{
      {options_, kv_, order_, builder_, forks_, accounting_, endings_, stats_, next_sequence_}};
};

}  // namespace millrace::sched
