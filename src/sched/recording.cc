// The decorator behind `--step-log`.
#include <utility>

#include "sched/step_log.h"

namespace millrace::sched {
namespace {

class RecordingScheduler : public Scheduler {
 public:
  RecordingScheduler(std::unique_ptr<Scheduler> inner, const SchedulerOptions& options,
                     std::function<void(std::string_view)> write)
      : inner_(std::move(inner)), stages_(options.stages), write_(std::move(write)) {
    write_(EncodeHeader(options));
  }

  Status Add(NewRequest request, Time now) override {
    const NewRequest copy = request;
    MR_RETURN_IF_ERROR(inner_->Add(std::move(request), now));
    has_beams_ = has_beams_ || copy.params->beam_search;
    Write(LoggedAdd{now, copy});
    return OkStatus();
  }
  void Abort(RequestId id, std::optional<int> index, Time now,
             std::vector<RequestOutput>& outputs) override {
    Write(LoggedAbort{now, id, index});
    inner_->Abort(id, index, now, outputs);
  }
  NextStep Schedule(Time now, std::vector<KvPull>& pulls) override {
    const bool tries = inner_->HasWork() && inner_->steps_in_flight() < stages_;
    NextStep step = inner_->Schedule(now, pulls);
    if (step) {
      Write(LoggedStep::Of(*step.plan, now));
    } else if (tries) {
      Write(LoggedIdle{now});
    }
    return step;
  }
  Status Commit(const StepResult& result, Time now, std::vector<RequestOutput>& outputs,
                std::vector<KvPull>& pulls) override {
    LoggedCommit commit{.at = now, .id = result.id};
    for (const SequenceResult& s : result.sequences) {
      commit.tokens.push_back(s.token);
      if (has_beams_) {
        commit.candidates.push_back(s.logprobs ? s.logprobs->top : std::vector<TokenLogprob>());
      }
    }
    Write(commit);
    return inner_->Commit(result, now, outputs, pulls);
  }
  int CachedTokens(std::span<const TokenId> prompt, std::string_view salt,
                   kv::PrefixChain& names) override {
    return inner_->CachedTokens(prompt, salt, names);
  }
  int LimitBlocks(int limit) override {
    Write(LoggedLimit{limit});
    return inner_->LimitBlocks(limit);
  }
  std::vector<BlockIndex> TakeReturned() override { return inner_->TakeReturned(); }
  bool LacksBlocks() const override { return inner_->LacksBlocks(); }
  void LimitSteps(const StepLimits& limits) override {
    Write(LoggedStepLimits{limits});
    inner_->LimitSteps(limits);
  }
  void SetCosts(const PreemptionCosts& costs) override {
    Write(LoggedCosts{costs});
    inner_->SetCosts(costs);
  }
  void ResetPrefixCache() override {
    Write(LoggedReset{});
    inner_->ResetPrefixCache();
  }

  std::vector<BlockIndex> HeldBlocks(RequestId id) const override { return inner_->HeldBlocks(id); }
  void KvArrived(RequestId id, bool complete, Time now) override {
    Write(LoggedKvArrival{now, id, complete});
    inner_->KvArrived(id, complete, now);
  }
  void KvArrivedWithout(RequestId id, LayerRange lacking, Time now) override {
    Write(LoggedKvArrival{now, id, true, lacking});
    inner_->KvArrivedWithout(id, lacking, now);
  }
  Status ExtendImport(RequestId id, const std::vector<ResumedSequence>& more,
                      const std::vector<int>& imported_tokens,
                      std::vector<KvPull>& pulls) override {
    MR_RETURN_IF_ERROR(inner_->ExtendImport(id, more, imported_tokens, pulls));
    Write(LoggedKvExtension{id, more, imported_tokens});
    return OkStatus();
  }
  void CloseImport(RequestId id, Time now) override {
    Write(LoggedImportEnd{now, id});
    inner_->CloseImport(id, now);
  }
  bool ExtendHold(RequestId id, Time now, Duration hold_kv) override {
    Write(LoggedHoldExtension{now, id, hold_kv});
    return inner_->ExtendHold(id, now, hold_kv);
  }
  void ReleaseKv(RequestId id) override {
    Write(LoggedKvRelease{id});
    inner_->ReleaseKv(id);
  }
  std::optional<DetachedRequest> Export(RequestId id, Time now, Duration hold_kv) override {
    Write(LoggedExport{now, id, hold_kv});
    return inner_->Export(id, now, hold_kv);
  }
  void Pause(RequestId id) override {
    Write(LoggedPause{id, true});
    inner_->Pause(id);
  }
  bool AtRest(RequestId id) const override { return inner_->AtRest(id); }
  void Unpause(RequestId id) override {
    Write(LoggedPause{id, false});
    inner_->Unpause(id);
  }
  std::optional<DetachedRequest> Peek(RequestId id) const override { return inner_->Peek(id); }
  std::optional<DetachedRequest> Detach(RequestId id, Time now,
                                        std::optional<Duration> hold_kv) override {
    Write(LoggedDetach{now, id, hold_kv});
    return inner_->Detach(id, now, hold_kv);
  }
  std::vector<DetachedRequest> DetachAll(Time now) override {
    auto left = inner_->DetachAll(now);
    for (const DetachedRequest& d : left) Write(LoggedDetach{now, d.request.id, {}});
    return left;
  }

  int steps_in_flight() const override { return inner_->steps_in_flight(); }
  bool HasWork() const override { return inner_->HasWork(); }
  SchedulerStats Stats() const override { return inner_->Stats(); }
  int blocks_in_use() const override { return inner_->blocks_in_use(); }
  std::optional<RequestInfo> Inspect(RequestId id, Time now) const override {
    return inner_->Inspect(id, now);
  }
  std::vector<RequestInfo> InspectAll(Time now) const override { return inner_->InspectAll(now); }
  std::optional<TimeAccount> Account(RequestId id, Time now) const override {
    return inner_->Account(id, now);
  }
  TimeAccount* AccountOf(RequestId id) override { return inner_->AccountOf(id); }
  std::optional<RequestInfo> Stalled(Time now) const override { return inner_->Stalled(now); }
  void CheckIntegrity() const override { inner_->CheckIntegrity(); }

 private:
  void Write(LogEntry entry) { write_(EncodeEntry(entry)); }

  const std::unique_ptr<Scheduler> inner_;
  const int stages_;
  const std::function<void(std::string_view)> write_;
  bool has_beams_ = false;  // since the start
};

}  // namespace

std::unique_ptr<Scheduler> NewRecordingScheduler(std::unique_ptr<Scheduler> inner,
                                                 const SchedulerOptions& options,
                                                 std::function<void(std::string_view)> write) {
  return std::make_unique<RecordingScheduler>(std::move(inner), options, std::move(write));
}

}  // namespace millrace::sched
