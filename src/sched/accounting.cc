#include "sched/accounting.h"

#include <algorithm>
#include <iterator>

namespace millrace::sched {
namespace {

// The others of a step or of a queue, without the request itself.
AccountIds Without(const AccountIds& ids, RequestId self) {
  AccountIds others = {};
  std::ranges::copy_if(ids, others.begin(), [&](RequestId id) { return id != self; });
  return others;
}

}  // namespace

// What the first waiting request lacks until the next step is formed.
TimeCause Accounting::FirstLacks(const StepRoom& room) const {
  if (requests_.waiting().empty()) return TimeCause::kStep;
  if (room.blocked || !room.preemptions.empty()) return TimeCause::kBlocks;
  if (room.tokens == 0) return TimeCause::kStepFull;
  if (room.sequences == 0) return TimeCause::kSequences;
  const Request& first = *requests_.waiting().begin()->second;
  switch (room.refused.value_or(first.verdict.reason)) {
    case Verdict::Reason::kBlocks: return TimeCause::kBlocks;
    case Verdict::Reason::kSequences: return TimeCause::kSequences;
    case Verdict::Reason::kReservation:
    case Verdict::Reason::kChunks: return TimeCause::kReservation;
    case Verdict::Reason::kStepInFlight: return TimeCause::kStep;
    default: return TimeCause::kStepFull;
  }
}

// Who is before it as it joins the queue.
void Accounting::Joined(Request& request, Time now) const {
  const RequestTable::Queue& waiting = requests_.waiting();
  QueueAhead& ahead = request.ahead;
  ahead.totals = queue_causes_.At(now);
  const auto place = waiting.find(request.key);
  // Where shares decide, only those of its own client are known to be before it.
  const auto first =
      request.queued ? waiting.lower_bound({request.key.rank, Time{}, 0}) : waiting.begin();
  if (!request.queued && std::next(place) == waiting.end()) {
    ahead.waiting = static_cast<int>(waiting.size()) - 1;
    ahead.prompt_tokens = requests_.waiting_prompt_tokens() - request.prompt_tokens;
  } else {  // by priority, or it arrived elsewhere
    for (auto other = first; other != place; ++other) {
      ++ahead.waiting;
      ahead.prompt_tokens += other->second->prompt_tokens;
    }
  }
  ahead.running = static_cast<int>(requests_.running().size() + requests_.pulling().size());
  size_t named = 0;
  for (auto other = first; other != place && named < kAccountIdsMax; ++other) {
    ahead.ids[named++] = other->second->spec.id;
  }
  for (const Request* other : requests_.running()) {
    if (named == kAccountIdsMax) break;
    ahead.ids[named++] = other->spec.id;
  }
}

// Adds everything until `now` to the account, which is the request's or a copy of it.
void Accounting::Settle(const Request& request, TimeAccount& account, Time now) const {
  const TimeAccount::Beside taker{.ids = &request.ahead.ids};
  switch (request.state) {
    case RequestState::kWaiting: return SettleQueue(request, account, now);
    case RequestState::kPreempted:
      account.Spend(TimeUse::kPreempted, TimeCause::kBlocks, now, taker);
      return;
    case RequestState::kSwapped:
      account.Spend(TimeUse::kSwapped, TimeCause::kBlocks, now, taker);
      return;
    case RequestState::kPulling: account.Spend(TimeUse::kPull, account.because(), now); return;
    case RequestState::kFinished: return;
    case RequestState::kRunning: break;
  }
  for (const StepLedger::Step& step : ledger_.steps()) {
    for (const StepLedger::Entry& entry : step.entries) {
      if (entry.sequence->request == &request) return SpendStep(account, entry, step, now);
    }
  }
  if (account.until() < now) SpendWait(request, account, now, ledger_.next(), ledger_.prompts());
}

void Accounting::SettleQueue(const Request& request, TimeAccount& account, Time now) const {
  // A request that came from another pipeline still comes from there while no limit holds it up.
  const bool came = account.because() != TimeCause::kNone;
  const QueueAhead& ahead = request.ahead;
  const QueueCauses::Totals totals = queue_causes_.At(now);
  for (size_t i = 0; i < totals.size(); ++i) {
    const Duration part = totals[i] - ahead.totals[i];
    if (part <= Duration{}) continue;
    const TimeCause lacked = QueueCauses::kCauses[i];
    if (came && lacked == TimeCause::kStep) continue;
    TimeEntry& entry = account.Spend(TimeUse::kQueue, lacked, std::min(account.until() + part, now),
                                     {0, ahead.waiting, &ahead.ids});
    entry.others_tokens = ahead.prompt_tokens;
    entry.running = ahead.running;
  }
  if (account.until() >= now) return;
  if (came) {
    account.Spend(TimeUse::kRequeue, account.because(), now);
  } else {
    account.Spend(TimeUse::kQueue, TimeCause::kStep, now);
  }
}

// It ran and was in no step before `next`.
void Accounting::SpendWait(const Request& request, TimeAccount& account, Time until, StepId next,
                           const PromptsSent& prompts) const {
  const auto others = static_cast<int64_t>(prompts.tokens - request.prompts_seen);
  const bool left_out = next.value() > request.step_seen.value() + 1;
  TimeCause cause = left_out ? TimeCause::kTurn : TimeCause::kNone;
  if (request.paused) {
    cause = TimeCause::kPaused;
  } else if (request.lacked_blocks) {
    cause = TimeCause::kBlocks;
  } else if (others > 0) {
    cause = TimeCause::kPrompts;
  }
  const bool behind = cause == TimeCause::kPrompts;
  const AccountIds ids = behind ? Without(prompts.ids, request.spec.id) : AccountIds{};
  account.Spend(TimeUse::kWait, cause, until, {behind ? others : 0, 0, &ids});
}

// The step has taken until `now`, or has ended.
void Accounting::SpendStep(TimeAccount& account, const StepLedger::Entry& entry,
                           const StepLedger::Step& step, Time now) const {
  const Sequence& s = *entry.sequence;
  const Request& r = *s.request;
  const StepLoad& load = step.load;
  if (load.sent > account.until()) SpendWait(r, account, load.sent, step.id, load.before);
  const int own = std::max(r.step_tokens, entry.num_tokens);
  const bool prompt = entry.start < r.prompt_tokens && s.output.empty();
  TimeUse use = prompt ? TimeUse::kPrefill : TimeUse::kDecode;
  if (entry.start < s.computed_most || s.lacks_layers()) use = TimeUse::kRecompute;
  TimeCause cause = account.because();
  if (use == TimeUse::kDecode) {
    cause = load.prompt_tokens > 0 ? TimeCause::kPrompts : TimeCause::kNone;
  }
  TimeAccount::Beside beside{std::max(0, load.tokens - own), load.requests - 1, &load.prompts.ids};
  AccountIds others;
  if (use != TimeUse::kDecode) {
    others = Without(load.prompts.ids, r.spec.id);
    beside.ids = &others;
  }
  TimeEntry& spent = account.Spend(use, cause, now, beside);
  if (s.lacks_layers()) spent.layers = s.lacking;
}

// A step that had one of the request's sequences has ended.
void Accounting::StepEnded(const StepLedger::Entry& entry, const StepLedger::Step& step,
                           Time now) const {
  const Sequence& s = *entry.sequence;
  Request& r = *s.request;
  // Otherwise it was preempted meanwhile, and its time goes into that.
  if (r.state != RequestState::kRunning || entry.incarnation != s.incarnation) {
    return Settle(r, now);
  }
  const bool first = r.step_seen != step.id;
  if (first) SpendStep(r.account, entry, step, now);
  TimeEntry& spent = r.account.Last();
  spent.tokens += entry.num_tokens;
  if (!first) return;
  ++spent.steps;
  r.step_seen = step.id;
  r.prompts_seen = step.load.before.tokens + static_cast<uint64_t>(step.load.prompt_tokens);
  r.lacked_blocks = false;
}

std::optional<TimeAccount> Accounting::Account(RequestId id, Time now) const {
  const Request* r = requests_.Find(id);
  if (!r) return std::nullopt;
  TimeAccount account = r->account;
  Settle(*r, account, now);
  return account;
}

TimeAccount* Accounting::AccountOf(RequestId id) const {
  Request* r = requests_.Find(id);
  return r ? &r->account : nullptr;
}

}  // namespace millrace::sched
