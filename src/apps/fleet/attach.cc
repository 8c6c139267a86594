#include "apps/fleet/attach.h"

#include <memory>
#include <utility>

#include "apps/cli/parse.h"
#include "apps/fleet/fleet_json.h"
#include "base/file.h"
#include "base/mutex.h"
#include "ops/cluster/admin_layer.h"
#include "ops/fleet/fleet_host.h"

namespace millrace::apps {
namespace {

constexpr size_t kFleetFileBytesMax = 1 << 20;

// The admin of a controller with a fleet.
class FleetAdmin : public ops::AdminLayer {
 public:
  using ops::AdminLayer::AdminLayer;
  // null: from now on there is no fleet. Waits for the calls that use it.
  void Use(const ops::FleetHost* fleet) {
    const MutexLock lock(mutex_);
    fleet_ = fleet;
  }

  Json Describe() override {
    Json status = below().Describe();
    const MutexLock lock(mutex_);
    if (fleet_ != nullptr) status["fleet"] = FleetJson(fleet_->spec(), fleet_->Describe());
    return status;
  }
  std::vector<serve::ClusterMetric> Metrics() override {
    std::vector<serve::ClusterMetric> metrics = below().Metrics();
    const MutexLock lock(mutex_);
    if (fleet_ != nullptr) AddFleetMetrics(fleet_->spec(), fleet_->Describe(), metrics);
    return metrics;
  }

 private:
  Mutex mutex_;
  const ops::FleetHost* fleet_ MR_GUARDED_BY(mutex_) = nullptr;
};

// A controller with its fleet, which ends before the controller does.
struct Equipped {
  std::shared_ptr<cluster::Generator> engine;
  FleetAdmin* admin;  // outlives the controller
  std::unique_ptr<ops::FleetHost> fleet;

  ~Equipped() { admin->Use(nullptr); }
};

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
  auto admin = std::make_unique<FleetAdmin>(std::move(model.model->cluster));
  auto fleet = ops::FleetHost::Start(std::move(*spec), engine.slo, model.server->host(),
                                     admin->below(), clock);
  if (!fleet.ok()) return fleet.status().WithContext(file);
  admin->Use(fleet->get());
  auto& generator = model.model->engine;
  cluster::Generator* inner = generator.get();
  std::shared_ptr<Equipped> held(
      new Equipped{std::move(generator), admin.get(), std::move(*fleet)});
  generator = {std::move(held), inner};
  model.model->cluster = std::move(admin);
  return OkStatus();
}

}  // namespace millrace::apps
