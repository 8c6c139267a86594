#include "cluster/control/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace millrace::cluster {
namespace {

constexpr int kScanMax = 64;  // waiting requests tried each time KV becomes free

int64_t TokensOf(const RouteRequest& request) {
  return request.prompt_tokens + request.output_tokens;
}

int64_t KvTokensOf(const RouteRequest& request) {
  return request.kv_tokens.value_or(TokensOf(request));
}

}  // namespace

Result<Router> Router::Create(Plan plan, std::vector<int64_t> kv_token_layers,
                              RouterOptions options) {
  if (kv_token_layers.size() != plan.stages.size()) {
    return InvalidArgument(
        fmt::format("{} KV capacities for {} stages", kv_token_layers.size(), plan.stages.size()));
  }
  if (!(options.kv_high_water > 0 && options.kv_high_water <= 1)) {
    return InvalidArgument(
        fmt::format("the KV high-water mark must be in (0, 1], not {}", options.kv_high_water));
  }
  Router router(std::move(plan), std::move(kv_token_layers), std::move(options));
  MR_RETURN_IF_ERROR(router.Index());
  return router;
}

Router::Router(Plan plan, std::vector<int64_t> kv, RouterOptions options)
    : plan_(std::move(plan)),
      options_(std::move(options)),
      kv_(std::move(kv), options_.kv_high_water),
      rng_(options_.seed),
      exits_(plan_.stages.size() + 1),
      up_(plan_.stages.size(), true),
      stage_requests_(plan_.stages.size(), 0),
      reachable_(plan_.stages.size(), false),
      edge_tokens_(plan_.edges.size(), 0) {}

Status Router::Index() {
  std::vector<std::vector<double>> weights(exits_.size());
  for (size_t e = 0; e < plan_.edges.size(); ++e) {
    const PlanEdge& edge = plan_.edges[e];
    const auto bad = [&](const std::optional<int>& s) {
      return s && (*s < 0 || *s >= num_stages());
    };
    if (bad(edge.from) || bad(edge.to) || (!edge.from && !edge.to)) {
      return InvalidArgument(
          fmt::format("edge {} of the plan names a stage that does not exist", e));
    }
    if (!(edge.tokens_per_s > 0)) continue;
    const int at = edge.from ? plan_.stages[*edge.from].layers.end : 0;
    const int end = edge.to ? plan_.stages[*edge.to].layers.end : plan_.num_layers;
    const int begin = edge.to ? plan_.stages[*edge.to].layers.begin : plan_.num_layers;
    if (begin > at || (edge.to ? end <= at : at != end) ||
        (!plan_.partial_inference && begin != at)) {
      return InvalidArgument(
          fmt::format("edge {} of the plan leads from layer {} into [{}, {})", e, at, begin, end));
    }
    exits_[Slot(edge.from)].push_back({static_cast<int>(e), edge.to, end - at});
    weights[Slot(edge.from)].push_back(edge.tokens_per_s);
  }
  for (auto& w : weights) schedulers_.emplace_back(std::move(w));
  order_.resize(num_stages());
  std::iota(order_.begin(), order_.end(), 0);
  // The last layer increases along every edge, so this order visits a stage after all of its
  // possible successors.
  std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) {
    return plan_.stages[a].layers.end > plan_.stages[b].layers.end;
  });
  if (!MarkReachable(0, true)) {
    return InvalidArgument("no route of the plan covers all layers");
  }
  return OkStatus();
}

bool Router::EdgeOpen(const Exit& exit, int64_t kv_tokens, bool on_empty_stages) const {
  if (!exit.to) return true;
  if (on_empty_stages) {
    return reachable_[*exit.to] && kv_.FitsEmpty(*exit.to, kv_tokens, exit.layers);
  }
  return reachable_[*exit.to] && up_[*exit.to] && kv_.Fits(*exit.to, kv_tokens, exit.layers);
}

// Marks the stages from which the end can be reached. Returns whether it can be reached from the
// coordinator.
bool Router::MarkReachable(int64_t kv_tokens, bool on_empty_stages) {
  const auto leads_on = [&](const Exit& exit) {
    return EdgeOpen(exit, kv_tokens, on_empty_stages);
  };
  std::fill(reachable_.begin(), reachable_.end(), false);
  for (int stage : order_) {
    reachable_[stage] = std::any_of(exits_[stage].begin(), exits_[stage].end(), leads_on);
  }
  const auto& entries = exits_[num_stages()];
  return std::any_of(entries.begin(), entries.end(), leads_on);
}

// REQUIRES: MarkReachable() returned true for `kv_tokens`, and `slot` is reachable.
int Router::Choose(int slot, int64_t kv_tokens, int64_t tokens) {
  const auto& exits = exits_[slot];
  open_.assign(exits.size(), false);
  int count = 0, last = 0;
  for (size_t e = 0; e < exits.size(); ++e) {
    if (!EdgeOpen(exits[e], kv_tokens, false)) continue;
    open_[e] = true;
    last = static_cast<int>(e);
    ++count;
  }
  if (options_.policy == RoutingPolicy::kFlow || count == 1) {
    return schedulers_[slot].PickByFlow(open_, static_cast<double>(tokens));
  }
  if (options_.policy == RoutingPolicy::kRandom) {
    int64_t skip = rng_.Between(0, count - 1);
    for (size_t e = 0; e < exits.size(); ++e) {
      if (open_[e] && skip-- == 0) return static_cast<int>(e);
    }
  }
  const auto length = [&](int e) {
    if (!exits[e].to) return 0.0;
    return options_.queue_length ? options_.queue_length(*exits[e].to)
                                 : static_cast<double>(stage_requests_[*exits[e].to]);
  };
  int best = last;
  for (size_t e = 0; e < exits.size(); ++e) {
    if (open_[e] && length(static_cast<int>(e)) < length(best)) best = static_cast<int>(e);
  }
  return best;
}

bool Router::TryRoute(const RouteRequest& request) {
  const int64_t tokens = TokensOf(request), kv_tokens = KvTokensOf(request);
  if (!MarkReachable(kv_tokens, false)) return false;
  Running running;
  running.reserved_tokens = kv_tokens;
  running.charged_tokens = tokens;
  for (int slot = num_stages(), at = 0; at < plan_.num_layers;) {
    const Exit& exit = exits_[slot][Choose(slot, kv_tokens, tokens)];
    running.edges.push_back(exit.edge);
    running.route.push_back({*exit.to, {at, at + exit.layers}});
    at += exit.layers;
    slot = *exit.to;
  }
  // The return to the coordinator is an edge with a planned flow too.
  const int last = running.route.back().stage;
  running.edges.push_back(exits_[last][Choose(last, kv_tokens, tokens)].edge);
  kv_.Charge(running.route, kv_tokens);
  for (const Hop& hop : running.route) ++stage_requests_[hop.stage];
  for (int edge : running.edges) edge_tokens_[edge] += static_cast<double>(tokens);
  decisions_.push_back({request.id, Outcome::kRouted, running.route});
  running_.emplace(request.id, std::move(running));
  return true;
}

Status Router::Submit(const RouteRequest& request, Time now) {
  if (running_.contains(request.id) || queued_ids_.contains(request.id)) {
    return FailedPrecondition(
        fmt::format("request {} is already waiting or running", request.id.value()));
  }
  if (request.prompt_tokens < 0 || request.output_tokens < 0 ||
      !MarkReachable(KvTokensOf(request), true)) {
    return InvalidArgument(fmt::format(
        "{} tokens ({} prompt, {} output) do not fit in the KV memory of any route, even empty",
        TokensOf(request), request.prompt_tokens, request.output_tokens));
  }
  Expire(now);
  const bool may_pass = queue_.empty() || now - queue_.front().since < options_.overtake_limit;
  if (may_pass && TryRoute(request)) return OkStatus();
  if (queued() >= options_.queue_max) {
    return ResourceExhausted(
        fmt::format("{} requests already wait for KV memory, which is the limit", queued()));
  }
  queue_.push_back({request, now});
  queued_ids_.emplace(request.id, now);
  return OkStatus();
}

// Gives free KV to the waiting requests in order of age. A small request may overtake a large one,
// unless the large one has waited too long.
void Router::Serve(Time now) {
  int seen = 0;
  for (auto it = queue_.begin(); it != queue_.end() && seen < kScanMax; ++seen) {
    if (TryRoute(it->request)) {
      queued_ids_.erase(it->request.id);
      it = queue_.erase(it);
      continue;
    }
    if (now - it->since >= options_.overtake_limit) return;
    ++it;
  }
}

void Router::Expire(Time now) {
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (!it->request.deadline || *it->request.deadline > now) {
      ++it;
      continue;
    }
    decisions_.push_back({it->request.id, Outcome::kExpired, {}});
    queued_ids_.erase(it->request.id);
    it = queue_.erase(it);
  }
}

std::vector<Router::Decision> Router::TakeDecisions(Time now) {
  Expire(now);
  return std::exchange(decisions_, {});
}

bool Router::Grow(RequestId id, int64_t tokens) {
  const auto it = running_.find(id);
  if (it == running_.end() || tokens <= it->second.reserved_tokens) return true;
  kv_.Charge(it->second.route, tokens - it->second.reserved_tokens);
  it->second.reserved_tokens = tokens;
  return kv_.WithinCapacity(it->second.route);
}

bool Router::Release(RequestId id, int64_t tokens, Time now) {
  if (const auto waiting = queued_ids_.find(id); waiting != queued_ids_.end()) {
    queued_ids_.erase(waiting);
    queue_.erase(std::find_if(queue_.begin(), queue_.end(),
                              [&](const Waiting& w) { return w.request.id == id; }));
    return true;
  }
  const auto it = running_.find(id);
  if (it == running_.end()) return false;
  Running& running = it->second;
  kv_.Charge(running.route, -running.reserved_tokens);
  for (const Hop& hop : running.route) --stage_requests_[hop.stage];
  // The flow shares count the computed tokens, not the expected ones.
  const double correction = static_cast<double>(tokens - running.charged_tokens);
  int slot = num_stages();
  for (int edge : running.edges) {
    const auto& exits = exits_[slot];
    const auto exit =
        std::find_if(exits.begin(), exits.end(), [edge](const Exit& x) { return x.edge == edge; });
    schedulers_[slot].Correct(static_cast<int>(exit - exits.begin()), correction);
    edge_tokens_[edge] += correction;
    slot = Slot(exit->to);
  }
  running_.erase(it);
  Serve(now);
  return true;
}

void Router::SetStageUp(int stage, bool up, Time now) {
  MR_CHECK(stage >= 0 && stage < num_stages()) << stage;
  up_[stage] = up;
  if (up) Serve(now);
}

void Router::SetStageKv(int stage, int64_t kv_token_layers) {
  MR_CHECK(stage >= 0 && stage < num_stages()) << stage;
  kv_.SetCapacity(stage, kv_token_layers);
}

const Route* Router::RouteOf(RequestId id) const {
  const auto it = running_.find(id);
  return it == running_.end() ? nullptr : &it->second.route;
}

}  // namespace millrace::cluster
