#include "cluster/fleet/fleet_view.h"

namespace millrace::cluster {

FleetView FleetViewOf(const ClusterStatus& status, double unix_s) {
  FleetView view{.waiting = static_cast<size_t>(status.waiting), .unix_s = unix_s};
  for (const StageStatus& stage : status.stages) {  // requests enter with the first layer
    if (stage.layers.begin == 0) view.waiting += static_cast<size_t>(stage.waiting);
  }
  for (const WorkerStatus& worker : status.workers) {
    view.members.push_back({.id = worker.id.value(),
                            .worker = worker.name,
                            .usable = worker.usable,
                            .draining = worker.draining,
                            .under_notice = worker.notice && worker.notice->hard,
                            .usd_per_h = worker.machine.price_usd_per_hour});
  }
  return view;
}

}  // namespace millrace::cluster
