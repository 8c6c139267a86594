// FleetOutbox: what a fleet wants done, in order, and the last events that it has logged.
//
// Owned by Fleet. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "cluster/fleet/fleet_types.h"

namespace millrace::cluster {

class FleetOutbox {
 public:
  static constexpr size_t kEventsMax = 100;  // kept; older ones are forgotten

  // The time of day of what is logged from now on.
  void SetUnixTime(double unix_s) { unix_s_ = unix_s; }
  void Log(FleetCause cause, std::string text) {
    FleetEvent event{.at_unix_s = unix_s_, .cause = cause, .text = std::move(text)};
    actions_.push_back(FleetLogged{event});
    events_.push_back(std::move(event));
    if (events_.size() > kEventsMax) events_.pop_front();
  }
  void Send(FleetAction action) { actions_.push_back(std::move(action)); }
  // Appends what was logged and sent since the last call.
  void Take(std::vector<FleetAction>& actions) {
    for (FleetAction& action : actions_) actions.push_back(std::move(action));
    actions_.clear();
  }
  const std::deque<FleetEvent>& events() const { return events_; }  // the oldest first

 private:
  double unix_s_ = 0;
  std::deque<FleetEvent> events_;
  std::vector<FleetAction> actions_;
};

}  // namespace millrace::cluster
