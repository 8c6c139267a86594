#include "apps/autopilot/live_search.h"

#include <utility>

#include "apps/autopilot/plan_search.h"
#include "apps/cluster/machines_view.h"

namespace millrace::apps {

Result<PlanInputs> InputsOfMachines(const std::string& model, const cluster::ClusterStatus& status,
                                    const Json& machines, sim::WorkloadSpec load) {
  MachinesView view = ReadMachinesView(machines);
  std::erase_if(view.machines, [&status](const MachineView& machine) {
    return !MayGetLayers(status, machine.name);
  });
  PlanInputFlags flags;
  flags.live = "the cluster";
  flags.model = model;
  MR_ASSIGN_OR_RETURN(flags.live_text, FormatClusterFile(view));
  return LoadPlanInputs(flags, std::move(load));
}

}  // namespace millrace::apps
