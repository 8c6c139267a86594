#include "apps/fleet/attach.h"

#include <utility>

#include "apps/cli/parse.h"
#include "apps/fleet/fleet_json.h"
#include "base/file.h"
#include "ops/fleet/fleet_host.h"

namespace millrace::apps {
namespace {

constexpr size_t kFleetFileBytesMax = 1 << 20;

}  // namespace

void AddFleetOption(Command& command, std::string* file) {
  Option option = TextOption("fleet", "FILE", file);
  option.kind = ValueKind::kFile;
  command.Add(
      "Fleet", std::move(option),
      "Acquire and release machines as the load asks, of the kinds and within the budget of "
      "this file; `millrace fleet` shows them [default: the workers that are started join]");
}

Result<std::optional<cluster::FleetSpec>> ReadFleet(const std::string& file) {
  if (file.empty()) return std::optional<cluster::FleetSpec>();
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kFleetFileBytesMax));
  MR_ASSIGN_OR_RETURN(cluster::FleetSpec spec, cluster::ParseFleetYaml(text, file));
  return std::optional(std::move(spec));
}

Status AttachFleet(const std::string& file, const EngineFlags& engine, ClusterModel& model,
                   const Clock& clock) {
  MR_ASSIGN_OR_RETURN(auto spec, ReadFleet(file));
  if (!spec) return OkStatus();
  auto fleet = ops::FleetHost::Start(std::move(*spec), engine.slo, model.server->host(),
                                     *model.admin, clock);
  if (!fleet.ok()) return fleet.status().WithContext(file);
  const ops::FleetHost* host = fleet->get();
  Accompany(
      model, std::move(*fleet),
      {.status =
           [host](Json& status) { status["fleet"] = FleetJson(host->spec(), host->Describe()); },
       .metrics =
           [host](auto& metrics) { AddFleetMetrics(host->spec(), host->Describe(), metrics); }});
  return OkStatus();
}

}  // namespace millrace::apps
