// QueueCauses: for how long in all the first waiting request has lacked what. The difference of two
// readings divides the time that a request spent in the queue between them, at no cost per step and
// request.
//
// Owned by the scheduler. Private to this folder.
#pragma once

#include <array>
#include <cstddef>

#include "base/clock.h"
#include "core/time_account.h"

namespace millrace::sched {

class QueueCauses {
 public:
  // In the order of TimeCause.
  static constexpr std::array kCauses = {TimeCause::kStep, TimeCause::kStepFull, TimeCause::kBlocks,
                                         TimeCause::kSequences, TimeCause::kReservation};
  using Totals = std::array<Duration, kCauses.size()>;

  // Until `now` it lacked what it lacked, and from now on it lacks this.
  void Lacks(TimeCause cause, Time now) {
    totals_ = At(now);
    since_ = now;
    lacks_ = static_cast<size_t>(cause) - static_cast<size_t>(kCauses.front());
  }
  Totals At(Time now) const {
    Totals totals = totals_;
    if (now > since_) totals[lacks_] = totals[lacks_] + (now - since_);
    return totals;
  }

 private:
  Totals totals_ = {};
  Time since_;
  size_t lacks_ = 0;
};

}  // namespace millrace::sched
