// The scheduler's state and the methods that change it, by file:
//   scheduler.cc  options, Add, queues        schedule.cc  the next step from what runs
//   mix_*.cc      composition of a step
//   admission.cc  which requests may start     preemption.cc  which are preempted
//   commit.cc     applies a step's result     lifecycle.cc  finish, abort, fork, retire
//   handoff.cc    KV imported from, or held for, another stage
//   detach.cc     requests that leave to continue elsewhere
//   inspect.cc    read-only views
// Private to this folder.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "sched/kv_transfers.h"
#include "sched/order_policy.h"
#include "sched/request.h"
#include "sched/reservations.h"
#include "sched/scheduler.h"

namespace millrace::sched {

// Even steps spread waiting prompts over this many steps per stage. But a step adds prompts until
// it has one part in kFillTokens of the tokens it may have, because a step of very few tokens takes
// as long as one of some more.
inline constexpr int kFillSteps = 4;
inline constexpr int kFillTokens = 8;

class SchedulerImpl : public Scheduler {
 public:
  explicit SchedulerImpl(const SchedulerOptions& options);

  Status Add(NewRequest request, Time now) override;
  void Abort(RequestId id, std::optional<int> index, Time now,
             std::vector<RequestOutput>& outputs) override;
  const StepPlan* Schedule(Time now, std::vector<KvPull>& pulls) override;
  void Commit(const StepResult& result, Time now, std::vector<RequestOutput>& outputs,
              std::vector<KvPull>& pulls) override;
  int steps_in_flight() const override { return static_cast<int>(ledger_.size()); }
  bool HasWork() const override {
    return !waiting_.empty() || !pulling_.empty() || !running_.empty();
  }
  SchedulerStats Stats() const override;
  int blocks_in_use() const override { return kv_.device().in_use(); }
  std::optional<RequestInfo> Inspect(RequestId id, Time now) const override;
  std::vector<RequestInfo> InspectAll(Time now) const override;
  void DrainPreemptions(std::vector<PreemptionRecord>& records) override;
  void KvArrived(RequestId id, bool complete, Time now) override;
  void KvArrivedWithout(RequestId id, LayerRange lacking, Time now) override;
  std::vector<BlockIndex> HeldBlocks(RequestId id) const override { return holds_.BlocksOf(id); }
  Status ExtendImport(RequestId id, std::vector<TokenId> more_output, int imported_tokens,
                      std::vector<KvPull>& pulls) override;
  void CloseImport(RequestId id, Time now) override;
  bool ExtendHold(RequestId id, Time now, Duration hold_kv) override {
    return holds_.Extend(id, now, hold_kv);
  }
  void ReleaseKv(RequestId id) override { holds_.Release(id); }
  std::optional<DetachedRequest> Export(RequestId id, Time now, Duration hold_kv) override;
  bool Pause(RequestId id) override;
  void Unpause(RequestId id) override;
  std::optional<DetachedRequest> Peek(RequestId id) const override;
  std::optional<DetachedRequest> Detach(RequestId id, Time now,
                                        std::optional<Duration> hold_kv) override;
  std::vector<DetachedRequest> DetachAll(Time now) override;
  int LimitBlocks(int limit) override {
    const kv::BlockPool& pool = kv_.device();
    return kv_.SetLimit(std::max(limit, std::min(pool.in_use() + promised_blocks_, pool.limit())));
  }
  void DrainReturned(std::vector<BlockIndex>& blocks) override;
  bool LacksBlocks() const override { return lacks_blocks_ && pulling_.empty(); }
  void SetCosts(const PreemptionCosts& costs) override { options_.costs = costs; }
  void ResetPrefixCache() override { kv_.ResetPrefixes(); }
  std::optional<RequestInfo> Stalled(Time now) const override;
  void CheckIntegrity() const override;

 private:
  // One sequence of a step in flight.
  struct LedgerEntry {
    Sequence* sequence = nullptr;
    SequenceId id;  // the executor's id for it; not that of `sequence` after a hand-over
    int start = 0;
    int num_tokens = 0;
    uint32_t incarnation = 0;  // the KV counts only if it is unchanged
    bool samples = false;      // the token counts
  };
  struct LedgerStep {
    StepId id;
    std::vector<LedgerEntry> entries;
  };
  // The remaining room of the step being built.
  struct StepRoom {
    int tokens = 0;
    int sequences = 0;
    std::optional<int>
        decodes_behind;      // ready decodes after the current request; counted when needed
    bool blocked = false;    // an earlier request waits for blocks: later ones must not take any
    bool preempted = false;  // then this step admits no request
  };
  struct Share {
    Sequence* sequence = nullptr;
    int num_tokens = 0;
  };
  enum class Grant { kGranted, kWait, kPreempted };

  // scheduler.cc
  Request* Find(RequestId id) const;
  void Enqueue(Request& request);       // into the queue, in order
  void StartRunning(Request& request);  // from the queue to the running requests
  void StopRunning(Request& request);

  // mix_mixed.cc, mix_prefill_first.cc
  void PrefetchAfter(size_t position) const;
  void FillMixed(StepRoom& room, Time now);
  void FillPrefillFirst(StepRoom& room, Time now);
  void FillPrompts(StepRoom& room, Time now);
  void FillDecodes(StepRoom& room);

  // schedule.cc
  int SequencesPerStep() const;
  static bool Prefills(const Request& request);
  void ScheduleRunning(size_t position, StepRoom& room);
  void CollectShares(Request& request, const StepRoom& room);
  int ChunkOf(int remaining, int tokens_left, const StepRoom& room) const;
  static int ReadyDecodesOf(const Request& request);
  int SharesBlocksNeeded(bool on_host) const;
  void Emit(Request& request, StepRoom& room);
  void CopyBeforeWriting(Sequence& sequence);
  void EmitShare(Request& request, const Share& share);
  const StepPlan* Send(Time now);

  // admission.cc
  void AdmitWaiting(StepRoom& room, Time now);
  int64_t PromptsPerStep() const;
  Verdict Consider(Request& request);
  Verdict ConsiderFresh(Request& request);
  Verdict ConsiderSwapped(Request& request);
  Verdict VerdictFor(const Request& request, int needed) const;
  int SiblingBlocks(const Request& request) const;
  void UpdatePromise(Request& request);
  void StartFresh(Request& request);
  void SwapIn(Request& request);

  // preemption.cc
  Grant Obtain(Request& request, int blocks, StepRoom& room);
  bool GrowReservation(Request& request, int blocks, StepRoom& room);
  void Preempt(Request& victim, const Request& beneficiary, int blocks_needed);
  PreemptionRecord Weigh(const Request& victim);
  void DropKv(Request& victim);
  void SwapOut(Request& victim);
  void CollectTables(const Request& request);

  // commit.cc
  void Apply(const LedgerEntry& entry, const Status& step_error, const SequenceResult* result,
             Time now, std::vector<RequestOutput>& outputs);
  void AdvanceComputed(const LedgerEntry& entry);
  void IndexPrefixes(Sequence& sequence);
  void TakePromptLogprobs(const LedgerEntry& entry, const SequenceResult& result);
  void TakeToken(Sequence& sequence, const SequenceResult& result, Time now,
                 std::vector<RequestOutput>& outputs);
  void Fail(Sequence& sequence, const Status& error, std::vector<RequestOutput>& outputs);

  // lifecycle.cc
  // Appends an empty output for `sequence`.
  RequestOutput& AppendOutput(const Sequence& sequence, std::vector<RequestOutput>& outputs) const;
  void End(Sequence& sequence, FinishReason reason, RequestOutput& output);
  void FreeBlocks(Sequence& sequence);
  void MaybeForkPrompt(Request& request);
  void StartSiblings(Request& request);
  void DropSiblingTables(Request& request);
  void HandOverPrompt(Sequence& leader);
  void Retire(Request& request);
  void LeaveQueue(Request& request);
  void Reap(Request& request);

  // handoff.cc
  int SharedBlocks(const Request& request) const;
  bool ImportsForked(const Request& request) const;
  bool StartPulling(Request& request);
  void TakeSiblingTables(Request& request);
  void AskForPull(const Sequence& sequence, int first_token);
  StepId FirstInFlight() const;
  void MaybeEndImport(Request& request, Time now);
  void EndImport(Request& request);
  void DropUnsentSwaps();
  Status CheckExtension(const Request* request, size_t more_output, int imported_tokens) const;
  void HoldKv(const Sequence& sequence);

  // detach.cc
  static NewRequest SnapshotOf(const Request& request);
  int CommittedTokens(const Sequence& sequence) const;
  std::vector<SequenceKv> CommittedKv(const Request& request,
                                      std::optional<LayerRange>* lacking) const;
  DetachedRequest MakeDetached(const Request& request, std::optional<Time> hold_until);
  void Leave(Request& request);

  // inspect.cc
  const Request* FindEvenEnded(RequestId id) const;
  RequestInfo InfoOf(const Request& request, Time now) const;
  std::string WaitReason(const Request& request) const;
  void CheckBlocks() const;
  void CheckCounts() const;

  SchedulerOptions options_;
  kv::KvCache kv_;
  std::unique_ptr<OrderPolicy> order_;
  Reservations reservations_;
  KvPulls pulls_;
  KvHolds holds_;
  int watermark_blocks_ = 0;

  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Request>> buried_;   // ended; kept until the next Schedule
  std::vector<std::unique_ptr<Request>> leaving_;  // detached, in steps in flight
  std::map<OrderKey, Request*> waiting_;           // not started, preempted or swapped out
  std::vector<Request*> running_;                  // in order
  std::map<OrderKey, Request*> pulling_;           // have blocks, wait for KV from elsewhere
  int running_sequences_ = 0;                      // live sequences of running requests
  int pulling_sequences_ = 0;                      // and of pulling requests
  int promised_blocks_ = 0;
  bool lacks_blocks_ = false;  // a request was left out of the last Schedule
  // For StepMix::kPrefillFirst.
  int prompt_steps_ = 0;        // since the last step of decodes
  bool decodes_short_ = false;  // the last one lacked blocks

  StepPlan plan_;
  std::vector<SequenceId> released_;  // for the next plan
  std::vector<BlockCopy> swap_out_;   // for the next plan
  std::vector<LedgerStep> ledger_;    // in flight, oldest first
  std::vector<LedgerStep> spare_;     // ledger steps to be reused, with their memory
  LedgerStep building_;

  // Kept to reuse their memory.
  std::vector<Share> shares_;
  std::vector<kv::SwapMove> moves_;
  std::vector<const kv::BlockTable*> tables_;

  std::vector<PreemptionRecord> preemptions_;
  SchedulerStats stats_;
  uint64_t next_number_ = 1;
  uint64_t next_sequence_ = 1;
  uint64_t next_step_ = 1;
  Time last_moved_;  // when a step was last built or applied, or work was added to an idle
                     // scheduler
};

}  // namespace millrace::sched
