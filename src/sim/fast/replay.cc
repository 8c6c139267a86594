#include "sim/fast/replay.h"

#include <fmt/format.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sim/machines/event_queue.h"

namespace millrace::sim {
namespace {

using sched::LoggedStep;

std::string Describe(const LoggedStep& step) {
  constexpr size_t kShown = 8;
  std::string text = fmt::format("{} sequences [", step.parts.size());
  for (size_t i = 0; i < step.parts.size() && i < kShown; ++i) {
    const LoggedStep::Part& p = step.parts[i];
    text += fmt::format("{}{}: {}+{}", i == 0 ? "" : ", ", p.id.value(), p.start, p.num_tokens);
  }
  return text + fmt::format("{}], {} new blocks, {} out, {} in, {} copied",
                            step.parts.size() > kShown ? ", ..." : "", step.blocks.size(),
                            step.swapped_out, step.swapped_in, step.copied);
}

class Player {
 public:
  explicit Player(std::unique_ptr<sched::Scheduler> scheduler) : scheduler_(std::move(scheduler)) {}

  // Returns false at a difference; nothing after it can be compared.
  Result<bool> Play(const sched::LogEntry& entry, Time now) {
    outputs_.clear();
    pulls_.clear();  // their ends are in the log
    if (const auto* add = std::get_if<sched::LoggedAdd>(&entry)) {
      ++report_.requests;
      if (!ids_.insert(add->request.id).second) {
        return InvalidArgument(fmt::format("request {} appears twice", add->request.id.value()));
      }
      MR_RETURN_IF_ERROR(scheduler_->Add(add->request, now));
    } else if (const auto* abort = std::get_if<sched::LoggedAbort>(&entry)) {
      ++report_.aborts;
      scheduler_->Abort(abort->id, abort->index, now, outputs_);
    } else if (const auto* costs = std::get_if<sched::LoggedCosts>(&entry)) {
      scheduler_->SetCosts(costs->costs);
    } else if (std::holds_alternative<sched::LoggedReset>(entry)) {
      scheduler_->ResetPrefixCache();
    } else if (const auto* limit = std::get_if<sched::LoggedLimit>(&entry)) {
      (void)scheduler_->LimitBlocks(limit->blocks);
    } else if (const auto* steps = std::get_if<sched::LoggedStepLimits>(&entry)) {
      scheduler_->LimitSteps(steps->limits);
    } else if (const auto* arrival = std::get_if<sched::LoggedKvArrival>(&entry)) {
      if (arrival->lacking) {
        scheduler_->KvArrivedWithout(arrival->id, *arrival->lacking, now);
      } else {
        scheduler_->KvArrived(arrival->id, arrival->complete, now);
      }
    } else if (const auto* release = std::get_if<sched::LoggedKvRelease>(&entry)) {
      scheduler_->ReleaseKv(release->id);
    } else if (const auto* longer = std::get_if<sched::LoggedHoldExtension>(&entry)) {
      (void)scheduler_->ExtendHold(longer->id, now, longer->hold_kv);
    } else if (const auto* more = std::get_if<sched::LoggedKvExtension>(&entry)) {
      MR_RETURN_IF_ERROR(
          scheduler_->ExtendImport(more->id, more->more, more->imported_tokens, pulls_));
    } else if (const auto* closed = std::get_if<sched::LoggedImportEnd>(&entry)) {
      scheduler_->CloseImport(closed->id, now);
    } else if (const auto* exported = std::get_if<sched::LoggedExport>(&entry)) {
      (void)scheduler_->Export(exported->id, now, exported->hold_kv);
    } else if (const auto* pause = std::get_if<sched::LoggedPause>(&entry)) {
      pause->paused ? scheduler_->Pause(pause->id) : scheduler_->Unpause(pause->id);
    } else if (const auto* detach = std::get_if<sched::LoggedDetach>(&entry)) {
      if (scheduler_->Detach(detach->id, now, detach->hold_kv)) ids_.erase(detach->id);
    } else if (const auto* step = std::get_if<LoggedStep>(&entry)) {
      return Decide(*step, now);
    } else if (std::holds_alternative<sched::LoggedIdle>(entry)) {
      return Idle(now);
    } else if (const auto* commit = std::get_if<sched::LoggedCommit>(&entry)) {
      MR_RETURN_IF_ERROR(Commit(*commit, now));
    }
    return true;
  }

  ReplayReport& report() { return report_; }

 private:
  bool Decide(const LoggedStep& logged, Time now) {
    const StepPlan* plan = scheduler_->Schedule(now, pulls_).plan;
    const LoggedStep ours = plan == nullptr ? LoggedStep{} : LoggedStep::Of(*plan, now);
    if (plan == nullptr || !ours.SameDecision(logged)) {
      report_.first_difference =
          fmt::format("step {}: the log has {}; the replay decided {}", logged.id.value(),
                      Describe(logged), plan == nullptr ? "no step" : Describe(ours));
      return false;
    }
    ++report_.steps;
    in_flight_ = ours;
    return true;
  }

  bool Idle(Time now) {
    const StepPlan* plan = scheduler_->Schedule(now, pulls_).plan;
    if (!plan) return true;
    report_.first_difference = fmt::format("at {} ns: the log has no step; the replay decided {}",
                                           now.ns, Describe(LoggedStep::Of(*plan, now)));
    return false;
  }

  Status Commit(const sched::LoggedCommit& commit, Time now) {
    if (!in_flight_ || in_flight_->id != commit.id) {
      return InvalidArgument(
          fmt::format("step {} is committed but is not in flight", commit.id.value()));
    }
    if (commit.tokens.size() != in_flight_->parts.size()) {
      return InvalidArgument(fmt::format(
          "step {} failed in the live run; what follows cannot be replayed", commit.id.value()));
    }
    StepResult result{.id = commit.id};
    for (size_t i = 0; i < commit.tokens.size(); ++i) {
      SequenceResult& sequence = result.sequences.emplace_back();
      sequence.id = in_flight_->parts[i].id;
      sequence.token = commit.tokens[i];
      if (!commit.candidates.empty())
        sequence.logprobs = PositionLogprobs{{}, commit.candidates[i]};
      if (!sequence.token) sequence.pooled = {0};  // vectors are not logged, and decide nothing
      report_.tokens += commit.tokens[i].has_value();
    }
    in_flight_.reset();
    return scheduler_->Commit(result, now, outputs_, pulls_);
  }

  const std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<RequestOutput> outputs_;
  std::vector<sched::KvPull> pulls_;
  std::optional<LoggedStep> in_flight_;
  std::unordered_set<RequestId> ids_;  // of all requests that arrived and were not detached
  ReplayReport report_;
};

std::optional<Time> TimeOf(const sched::LogEntry& entry) {
  if (const auto* e = std::get_if<sched::LoggedAdd>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedAbort>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedKvArrival>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedHoldExtension>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedImportEnd>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedExport>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedDetach>(&entry)) return e->at;
  if (const auto* e = std::get_if<LoggedStep>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedIdle>(&entry)) return e->at;
  if (const auto* e = std::get_if<sched::LoggedCommit>(&entry)) return e->at;
  return std::nullopt;  // happens with what precedes it
}

}  // namespace

Result<ReplayReport> Replay(const sched::StepLog& log) {
  if (log.options.stages != 1) {
    return InvalidArgument(fmt::format(
        "the log is of a pipeline of {} stages, only one can be replayed", log.options.stages));
  }
  MR_ASSIGN_OR_RETURN(auto scheduler, sched::Scheduler::Create(log.options));
  Player player(std::move(scheduler));
  EventQueue<const sched::LogEntry*> events;
  Time last;
  for (const sched::LogEntry& entry : log.entries) {
    last = TimeOf(entry).value_or(last);
    events.Push(last, &entry);
  }
  const Time first = events.empty() ? Time{} : events.next_time();
  while (!events.empty()) {
    const Time now = events.next_time();
    player.report().seconds = (now - first).seconds();
    MR_ASSIGN_OR_RETURN(const bool equal, player.Play(*events.Pop(), now));
    if (!equal) break;
  }
  return std::move(player.report());
}

}  // namespace millrace::sim
