// Accounting: what the time of each request went into (core/time_account.h). A running request's
// account is written when its step ends; any other time is added when its state ends, or when
// somebody asks.
//
// Owned by the scheduler. Private to this folder.
#pragma once

#include <optional>

#include "core/time_account.h"
#include "sched/queue_causes.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/step_ledger.h"
#include "sched/step_room.h"

namespace millrace::sched {

class Accounting {
 public:
  // They outlive this object.
  Accounting(const RequestTable& requests, const StepLedger& ledger)
      : requests_(requests), ledger_(ledger) {}

  // It has joined the queue: notes who is before it.
  void Joined(Request& request, Time now) const;
  // The next step has all that it gets.
  void StepFormed(const StepRoom& room, Time now) { queue_causes_.Lacks(FirstLacks(room), now); }
  // A step that had one of the request's sequences has ended.
  void StepEnded(const StepLedger::Entry& entry, const StepLedger::Step& step, Time now) const;
  // Adds everything until `now` to the account, which is the request's or a copy of it.
  void Settle(const Request& request, TimeAccount& account, Time now) const;
  // The same; then something else begins.
  void Settle(Request& request, Time now) const {
    Settle(request, request.account, now);
    request.account.NewEpisode();
  }
  // As of Scheduler.
  std::optional<TimeAccount> Account(RequestId id, Time now) const;
  TimeAccount* AccountOf(RequestId id) const;

 private:
  TimeCause FirstLacks(const StepRoom& room) const;
  void SettleQueue(const Request& request, TimeAccount& account, Time now) const;
  void SpendWait(const Request& request, TimeAccount& account, Time until, StepId next,
                 const PromptsSent& prompts) const;
  void SpendStep(TimeAccount& account, const StepLedger::Entry& entry, const StepLedger::Step& step,
                 Time now) const;

  const RequestTable& requests_;
  const StepLedger& ledger_;
  QueueCauses queue_causes_;
};

}  // namespace millrace::sched
