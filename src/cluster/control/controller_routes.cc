// Plans that branch: the router chooses a route per request. This file tells it which stages are up
// and which requests wait.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

// In token layers. Assumed for stages whose memory is not known yet; more than any stage has.
constexpr int64_t kUnknownKv = int64_t{1} << 40;

}  // namespace

Result<Router> ControllerCore::NewRouter(const Plan& plan) const {
  return Router::Create(plan, std::vector<int64_t>(plan.stages.size(), kUnknownKv),
                        options_.router);
}

Status ControllerCore::CheckRoutable(const Layout& layout) const {
  return layout.pipelines.empty() ? NewRouter(layout.plan).status() : OkStatus();
}

// Makes the router as soon as some route is up. The other stages get requests once they are up.
void ControllerCore::UpdateRouter(Time now) {
  const bool is_new = !router_ && layout().pipelines.empty() && !layout().Missing();
  if (is_new) router_.emplace(NewRouter(layout().plan).value());
  if (!router_) return;
  for (size_t i = 0; i < layout().stages.size(); ++i) {
    const LayoutStage& stage = layout().stages[i];
    if (std::ranges::all_of(stage.ranks, &Slot::loaded)) {
      router_->SetStageKv(static_cast<int>(i), stage.KvTokenLayers());
    }
  }
  for (size_t i = 0; i < layout().stages.size(); ++i) {
    router_->SetStageUp(static_cast<int>(i), layout().stages[i].Up(), now);
  }
  if (!is_new) return;
  requests_.ForgetRoutes();
  for (RequestId id : requests_.Queue()) (void)SubmitToRouter(id, now);
}

Status ControllerCore::SubmitToRouter(RequestId id, Time now) {
  const Request& request = requests_.at(id);
  const Status submitted = router_->Submit(
      {.id = id,
       .prompt_tokens = request.prompt_tokens(),
       .output_tokens = requests_.OutputLimit(request),
       .kv_tokens = int64_t{requests_.MostBlocks(id)} * options_.scheduler.block_size},
      now);
  ApplyRouterDecisions(now);
  return submitted;
}

// Waiting requests whose route has a stage that is down get another route.
void ControllerCore::RerouteWaiting(Time now) {
  if (!router_) return;
  std::vector<RequestId> rerouted;
  for (RequestId id : requests_.Queue()) {
    const std::optional<Route>& route = requests_.at(id).route;
    const bool down = route && std::ranges::any_of(*route, [&](const Hop& hop) {
                        return !layout().stages[static_cast<size_t>(hop.stage)].Up();
                      });
    if (down) rerouted.push_back(id);
  }
  for (RequestId id : rerouted) {
    requests_.at(id).route.reset();
    router_->Release(id, 0, now);
    (void)SubmitToRouter(id, now);
  }
}

void ControllerCore::ApplyRouterDecisions(Time now) {
  for (Router::Decision& decision : router_->TakeDecisions(now)) {
    Request* request = requests_.Find(decision.id);
    if (request == nullptr || decision.outcome != Router::Outcome::kRouted) continue;
    request->route = std::move(decision.route);
    requests_.TryQueue();
  }
}

}  // namespace millrace::cluster
