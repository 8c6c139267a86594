#include "ops/fleet/fleet_host.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/log.h"
#include "cluster/fleet/fleet_view.h"
#include "ops/fleet/exec_provider.h"
#include "ops/fleet/kubernetes_provider.h"

namespace millrace::ops {
namespace {

using cluster::Fleet;

void LogEvent(const cluster::FleetEvent& event) {
  const std::string line =
      fmt::format("fleet: {} ({})", event.text, cluster::FleetCauseName(event.cause));
  if (event.cause == cluster::FleetCause::kProvider) {
    MR_LOG(warn, "{}", line);
  } else {
    MR_LOG(info, "{}", line);
  }
}

}  // namespace

Result<std::unique_ptr<MachineProvider>> MakeProvider(const cluster::FleetKind& kind,
                                                      const cluster::KubernetesAccess& kubernetes,
                                                      const std::atomic<bool>& stop) {
  std::unique_ptr<MachineProvider> provider;
  if (kind.provider == cluster::FleetProvider::kExec) {
    provider = std::make_unique<ExecProvider>(kind.argument, kind.name, kind.timeout, stop);
  } else if (kind.provider == cluster::FleetProvider::kKubernetes) {
    MR_ASSIGN_OR_RETURN(provider,
                        KubernetesProvider::Create(kind.argument, kubernetes, kind.timeout, stop));
  }
  return provider;
}

FleetHost::FleetHost(cluster::FleetSpec spec, const LatencyLimits& limits,
                     cluster::ControllerHost& controller, serve::ClusterAdmin& admin,
                     const Clock& clock)
    : spec_(spec),
      admin_(admin),
      companion_(controller, clock, std::move(spec), limits),
      calls_(spec_.kinds.size()) {}

Result<std::unique_ptr<FleetHost>> FleetHost::Start(cluster::FleetSpec spec,
                                                    const LatencyLimits& limits,
                                                    cluster::ControllerHost& controller,
                                                    serve::ClusterAdmin& admin,
                                                    const Clock& clock) {
  std::unique_ptr<FleetHost> host(new FleetHost(std::move(spec), limits, controller, admin, clock));
  FleetHost* self = host.get();
  for (size_t k = 0; k < self->calls_.size(); ++k) {
    Calls& calls = self->calls_[k];
    auto provider = MakeProvider(self->spec_.kinds[k], self->spec_.kubernetes, self->stop_calls_);
    if (!provider.ok()) return provider.status().WithContext(self->spec_.kinds[k].name);
    calls.provider = std::move(*provider);
    if (calls.provider != nullptr) calls.thread = std::make_unique<Mailbox>();
  }
  self->companion_.Start([self](const auto& status, double unix_s) { self->Look(status, unix_s); });
  return host;
}

FleetHost::~FleetHost() {
  stop_calls_ = true;
  companion_.Stop();
  for (Calls& calls : calls_) calls.thread.reset();
}

cluster::FleetStatus FleetHost::Describe() const {
  return companion_.With([](const Fleet& fleet, Time now) { return fleet.Describe(now); });
}

void FleetHost::Look(const cluster::ClusterStatus& status, double unix_s) {
  std::vector<cluster::FleetAction> actions;
  companion_.With([&, view = cluster::FleetViewOf(status, unix_s)](Fleet& fleet, Time now) {
    fleet.Observe(view, now);
    fleet.TakeActions(actions);
    AskProviders(now);
  });
  for (const cluster::FleetAction& action : actions) {
    if (const auto* said = std::get_if<cluster::FleetLogged>(&action)) LogEvent(said->event);
    if (const auto* order = std::get_if<cluster::AcquireMachines>(&action)) Do(*order);
    if (const auto* drain = std::get_if<cluster::DrainMachine>(&action)) Do(*drain);
    if (const auto* release = std::get_if<cluster::ReleaseMachine>(&action)) Do(*release);
  }
}

void FleetHost::AskProviders(Time now) {
  for (size_t k = 0; k < calls_.size(); ++k) {
    Calls& calls = calls_[k];
    if (calls.provider == nullptr || calls.asking || now < calls.list_at) continue;
    calls.asking = true;
    calls.list_at = now + kListEvery;
    const bool price = now >= calls.price_at;
    if (price) calls.price_at = now + kPriceEvery;
    calls.thread->Put([this, k, price] {
      if (price) {
        const auto said = calls_[k].provider->Price();
        companion_.With([&](Fleet& fleet, Time at) {
          if (!said.ok()) calls_[k].price_at = at + kListEvery;
          fleet.PriceReported(k, said, at);
        });
      }
      List(k);
      companion_.With([&](Fleet&, Time) { calls_[k].asking = false; });
    });
  }
}

void FleetHost::List(size_t kind) {
  const auto machines = calls_[kind].provider->List();
  companion_.With([&](Fleet& fleet, Time now) { fleet.Listed(kind, machines, now); });
}

void FleetHost::Do(const cluster::AcquireMachines& order) {
  calls_[order.kind].thread->Put([this, order] {
    MachineProvider& provider = *calls_[order.kind].provider;
    const Status acquired = provider.Acquire(order.count);
    const auto machines = provider.List();
    companion_.With([&](Fleet& fleet, Time now) {
      fleet.AcquireEnded(order.order, acquired, now);
      fleet.Listed(order.kind, machines, now);
    });
  });
}

void FleetHost::Do(const cluster::ReleaseMachine& release) {
  calls_[release.kind].thread->Put([this, release] {
    const Status released = calls_[release.kind].provider->Release(release.id);
    companion_.With([&](Fleet& fleet, Time now) {
      fleet.ReleaseEnded(release.kind, release.id, released, now);
    });
    List(release.kind);
  });
}

void FleetHost::Do(const cluster::DrainMachine& drain) {
  const Status drained = admin_.Drain(drain.worker);
  companion_.With([&](Fleet& fleet, Time now) { fleet.DrainEnded(drain.worker, drained, now); });
}

}  // namespace millrace::ops
