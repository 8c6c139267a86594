#include "ops/fleet/fleet_host.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <variant>

#include "base/log.h"
#include "cluster/fleet/fleet_view.h"
#include "ops/fleet/exec_provider.h"
#include "ops/fleet/kubernetes_provider.h"

namespace millrace::ops {
namespace {

constexpr auto kFleetLookEvery = std::chrono::seconds(1);

double UnixNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

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
      controller_(controller),
      admin_(admin),
      clock_(clock),
      fleet_(std::move(spec), limits),
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
  self->watcher_ =
      controller.Watch({.arrived =
                            [self](RequestId id, int prompt_tokens) {
                              const MutexLock lock(self->mutex_);
                              self->fleet_.Arrived(id, prompt_tokens, self->clock_.Now());
                            },
                        .heard =
                            [self](const RequestOutput& output) {
                              const MutexLock lock(self->mutex_);
                              self->fleet_.Heard(output, self->clock_.Now());
                            }});
  self->thread_ = std::thread([self] { self->Run(); });
  return host;
}

FleetHost::~FleetHost() {
  if (!thread_.joinable()) return;  // it has not started
  controller_.Unwatch(watcher_);
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_calls_ = true;
  wake_.notify_one();
  thread_.join();
  for (Calls& calls : calls_) calls.thread.reset();
}

cluster::FleetStatus FleetHost::Describe() const {
  const MutexLock lock(mutex_);
  return fleet_.Describe(clock_.Now());
}

void FleetHost::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    Look();
    lock.lock();
    wake_.wait_for(lock, kFleetLookEvery, [this]() MR_REQUIRES(mutex_) { return stopping_; });
  }
}

void FleetHost::Look() {
  const cluster::FleetView view = cluster::FleetViewOf(controller_.Describe(), UnixNow());
  std::vector<cluster::FleetAction> actions;
  {
    const MutexLock lock(mutex_);
    const Time now = clock_.Now();
    fleet_.Observe(view, now);
    fleet_.TakeActions(actions);
    AskProviders(now);
  }
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
        const MutexLock lock(mutex_);
        if (!said.ok()) calls_[k].price_at = clock_.Now() + kListEvery;
        if (!stopping_) fleet_.PriceReported(k, said, clock_.Now());
      }
      List(k);
      const MutexLock lock(mutex_);
      calls_[k].asking = false;
    });
  }
}

void FleetHost::List(size_t kind) {
  const auto machines = calls_[kind].provider->List();
  const MutexLock lock(mutex_);
  if (!stopping_) fleet_.Listed(kind, machines, clock_.Now());
}

void FleetHost::Do(const cluster::AcquireMachines& order) {
  calls_[order.kind].thread->Put([this, order] {
    MachineProvider& provider = *calls_[order.kind].provider;
    const Status acquired = provider.Acquire(order.count);
    const auto machines = provider.List();
    const MutexLock lock(mutex_);
    if (stopping_) return;
    fleet_.AcquireEnded(order.order, acquired, clock_.Now());
    fleet_.Listed(order.kind, machines, clock_.Now());
  });
}

void FleetHost::Do(const cluster::ReleaseMachine& release) {
  calls_[release.kind].thread->Put([this, release] {
    const Status released = calls_[release.kind].provider->Release(release.id);
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      fleet_.ReleaseEnded(release.kind, release.id, released, clock_.Now());
    }
    List(release.kind);
  });
}

void FleetHost::Do(const cluster::DrainMachine& drain) {
  const Status drained = admin_.Drain(drain.worker);
  const MutexLock lock(mutex_);
  fleet_.DrainEnded(drain.worker, drained, clock_.Now());
}

}  // namespace millrace::ops
