// VirtualAutopilot: the server's autopilot on a virtual clock: it is shown a controller's status,
// its searches take as long as their caller says, and its plans are applied by a call.
//
// Owned by a simulation or by the fault lab. One thread.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/autopilot/autopilot.h"
#include "cluster/control/controller_status.h"
#include "core/worker_plan.h"

namespace millrace::sim {

struct VirtualAutopilotCalls {
  // Returns at once; the answer is delivered after the time that it says it took.
  std::function<cluster::SearchAnswer(const cluster::StartSearch& order,
                                      const cluster::ClusterStatus& status)>
      search;
  // The epoch of the plan, or why it was refused.
  std::function<Result<int64_t>(WorkerPlan)> apply;
};

class VirtualAutopilot {
 public:
  // `decisions`: of earlier controllers.
  VirtualAutopilot(const cluster::AutopilotOptions& options,
                   std::vector<cluster::Decision> decisions, VirtualAutopilotCalls calls)
      : calls_(std::move(calls)), autopilot_(options, std::move(decisions)) {}

  cluster::Autopilot& autopilot() { return autopilot_; }
  const cluster::Autopilot& autopilot() const { return autopilot_; }
  // Whether a search has ended whose answer the next Tick delivers.
  bool AnswerIsDue(Time now) const { return search_ && now >= search_->until; }
  void Tick(const cluster::ClusterStatus& status, Time now);

 private:
  struct Search {
    Time until;
    uint64_t id = 0;
    cluster::SearchAnswer answer;
  };

  const VirtualAutopilotCalls calls_;
  cluster::Autopilot autopilot_;
  std::optional<Search> search_;
};

}  // namespace millrace::sim
