#include "cluster/control/routing/router.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"

namespace millrace::cluster {
namespace {

std::vector<double> FlowsOf(std::span<const RouteGraph::Exit> exits) {
  std::vector<double> flows;
  for (const RouteGraph::Exit& exit : exits) flows.push_back(exit.tokens_per_s);
  return flows;
}

double Sum(std::span<const double> flows) {
  return std::accumulate(flows.begin(), flows.end(), 0.0);
}

// The flows of the entries for prompts: of the prefill stages, and then of those for both. If there
// are entries of both kinds, all are in prompt tokens, so that a request counts the same at each.
// The plan's prefill and decode tell how long its answers are beside its prompts.
std::vector<double> PromptEntries(const Layout& layout) {
  std::vector<double> flows = FlowsOf(layout.prefill.ExitsOf({}));
  std::vector<double> both = FlowsOf(layout.both.ExitsOf({}));
  if (!flows.empty()) {
    const double answers = Sum(FlowsOf(layout.decode.ExitsOf({})));
    for (double& flow : both) flow *= Sum(flows) / (Sum(flows) + answers);
  }
  flows.insert(flows.end(), both.begin(), both.end());
  return flows;
}

}  // namespace

bool Suits(const StageRoom& room, const WorkerNeed& need) {
  return room.protocol >= need.protocol && (!need.bits || room.bits == need.bits);
}

Router::Router(const Layout& layout)
    : plan_(layout.plan),
      both_{StageRole::kBoth, layout.both, {}, {}},
      prefill_{StageRole::kPrefill, layout.prefill, {}, {}},
      decode_{StageRole::kDecode, layout.decode, {}, {}},
      prompts_(PromptEntries(layout)),
      answers_(FlowsOf(layout.decode.ExitsOf({}))),
      hand_overs_(HandOversOf(layout.plan)) {
  both_.entries_before = layout.prefill.ExitsOf({}).size();
  for (Kind* kind : {&both_, &prefill_, &decode_}) {
    kind->reachable.resize(plan_.stages.size());
    for (int stage = 0; stage < std::ssize(plan_.stages); ++stage) {
      kind->schedulers.emplace_back(FlowsOf(kind->graph.ExitsOf(stage)));
    }
  }
}

Router::Kind& Router::KindOf(StageRole role) {
  return role == StageRole::kBoth ? both_ : role == StageRole::kPrefill ? prefill_ : decode_;
}

int64_t Router::KvOf(StageRole role, const RouteNeed& need) const {
  return role == StageRole::kPrefill ? need.prompt_kv : need.all_kv;
}

double Router::WorkOf(StageRole role, const RouteNeed& need) const {
  const int64_t prompt = role == StageRole::kDecode ? 0 : need.prompt_work;
  const int64_t answer = role == StageRole::kPrefill ? 0 : need.answer_work;
  return static_cast<double>(prompt + answer);
}

double Router::EntryWorkOf(StageRole role, const RouteNeed& need) const {
  const bool in_prompt_tokens = role != StageRole::kDecode && !prefill_.graph.empty();
  return in_prompt_tokens ? static_cast<double>(need.prompt_work) : WorkOf(role, need);
}

// Whether the KV of each layer that the stage and the request's KV have in common may come here.
bool Router::InReach(int stage, const RouteNeed& need) const {
  if (need.kv_at == nullptr || hand_overs_.empty()) return true;
  const LayerRange here = plan_.stages[static_cast<size_t>(stage)].layers;
  return std::ranges::all_of(*need.kv_at, [&](const Hop& hop) {
    const bool common = hop.layers.begin < here.end && here.begin < hop.layers.end;
    return !common || hop.stage == stage || hand_overs_.contains({hop.stage, stage});
  });
}

bool Router::IsOpen(const Kind& kind, const RouteGraph::Exit& exit, const Search& search) const {
  if (!exit.to) return true;
  const auto stage = static_cast<size_t>(*exit.to);
  const StageRoom& room = search.rooms[stage];
  const bool may = Suits(room, search.need.workers);
  if (!kind.reachable[stage] || !room.up || !may || !InReach(*exit.to, search.need)) return false;
  return search.mode == Mode::kUp ||
         room.token_layers >= KvOf(kind.role, search.need) * exit.layers ||
         (search.mode == Mode::kQueues && room.queues);
}

// Marks the stages from which the end can be reached. Returns whether it can be reached from the
// coordinator.
bool Router::MarkReachable(Kind& kind, const Search& search) {
  if (kind.graph.empty()) return false;
  const auto leads_on = [&](const RouteGraph::Exit& exit) { return IsOpen(kind, exit, search); };
  kind.reachable.assign(kind.reachable.size(), false);
  for (const int stage : kind.graph.order()) {
    kind.reachable[static_cast<size_t>(stage)] =
        std::ranges::any_of(kind.graph.ExitsOf(stage), leads_on);
  }
  return std::ranges::any_of(kind.graph.ExitsOf({}), leads_on);
}

// Chooses among the entries of these kinds, whose schedulers of the coordinator are the same.
std::optional<Walk> Router::TryKinds(std::span<Kind* const> kinds, const Search& search) {
  EdgeScheduler& entries = EntriesOf(kinds.front()->role);
  const size_t count = &entries == &answers_
                           ? decode_.graph.ExitsOf({}).size()
                           : both_.entries_before + both_.graph.ExitsOf({}).size();
  std::vector<bool> open(count, false);
  bool any = false;
  for (Kind* kind : kinds) {
    if (!MarkReachable(*kind, search)) continue;
    const auto& exits = kind->graph.ExitsOf({});
    for (size_t e = 0; e < exits.size(); ++e) {
      open[kind->entries_before + e] = IsOpen(*kind, exits[e], search);
    }
    any = true;
  }
  if (!any) return std::nullopt;
  auto chosen = static_cast<size_t>(entries.Choose(open));
  Kind& kind = **std::ranges::find_if(kinds, [&](const Kind* each) {
    return chosen >= each->entries_before &&
           chosen < each->entries_before + each->graph.ExitsOf({}).size();
  });
  return Follow(kind, kind.graph.ExitsOf({})[chosen - kind.entries_before], search);
}

// REQUIRES: MarkReachable() was called for this search, and the entry is open.
Walk Router::Follow(Kind& kind, const RouteGraph::Exit& entry, const Search& search) {
  Walk walk{kind.role, {}};
  const RouteGraph::Exit* exit = &entry;
  for (int at = 0; exit->to;) {
    walk.route.push_back({*exit->to, {at, at + exit->layers}});
    at += exit->layers;
    const auto& exits = kind.graph.ExitsOf(*exit->to);
    open_.assign(exits.size(), false);
    for (size_t e = 0; e < exits.size(); ++e) open_[e] = IsOpen(kind, exits[e], search);
    exit =
        &exits[static_cast<size_t>(kind.schedulers[static_cast<size_t>(*exit->to)].Choose(open_))];
  }
  return walk;
}

std::optional<Walk> Router::Choose(const RouteNeed& need, std::span<const StageRoom> rooms) {
  const std::array<Kind*, 2> prompts = {&prefill_, &both_};
  const std::array<Kind*, 1> decode = {&decode_}, both = {&both_};
  const std::span<Kind* const> usual = need.prompt ? std::span<Kind* const>(prompts) : decode;
  const std::span<Kind* const> stand_in = need.prompt ? std::span<Kind* const>(decode) : both;
  const auto is_up = [&](Kind* kind) { return MarkReachable(*kind, {need, rooms, Mode::kUp}); };
  const bool usual_is_up = std::ranges::any_of(usual, is_up);
  if (!usual_is_up &&
      need.kv_at != nullptr) {  // its KV must take another way, or is computed again
    RouteNeed anywhere = need;
    anywhere.kv_at = nullptr;
    return Choose(anywhere, rooms);
  }
  const std::span<Kind* const> kinds = usual_is_up ? usual : stand_in;
  for (const Mode mode : {Mode::kRoom, Mode::kQueues}) {
    if (auto walk = TryKinds(kinds, {need, rooms, mode})) return walk;
  }
  return std::nullopt;
}

bool Router::Fits(const RouteNeed& need, std::span<const StageRoom> rooms) {
  return std::ranges::any_of(std::array{&both_, &decode_}, [&](Kind* kind) {
    return MarkReachable(*kind, {need, rooms, Mode::kQueues});
  });
}

template <typename Visit>
void Router::ForEachEdge(const Walk& walk, const Visit& visit) {
  Kind& kind = KindOf(walk.role);
  std::optional<int> from;
  for (size_t i = 0; i <= walk.route.size(); ++i) {
    const auto to = i < walk.route.size() ? std::optional(walk.route[i].stage) : std::nullopt;
    const auto& exits = kind.graph.ExitsOf(from);
    const auto exit = std::ranges::find(exits, to, &RouteGraph::Exit::to);
    MR_CHECK(exit != exits.end()) << "the walk leaves the plan after hop " << i;
    const auto index = static_cast<int>(exit - exits.begin());
    if (from) {
      visit(kind.schedulers[static_cast<size_t>(*from)], index);
    } else {
      visit(EntriesOf(kind.role), static_cast<int>(kind.entries_before) + index);
    }
    from = to;
  }
}

void Router::Charge(const Walk& walk, const RouteNeed& need) {
  const double work = WorkOf(walk.role, need);
  ForEachEdge(walk, [&](EdgeScheduler& scheduler, int index) {
    scheduler.Charge(index, &scheduler == &prompts_ ? EntryWorkOf(walk.role, need) : work);
  });
}

void Router::Correct(const Walk& walk, int64_t answer_tokens) {
  if (walk.role == StageRole::kPrefill) return;
  const auto work = static_cast<double>(answer_tokens);
  ForEachEdge(walk, [&](EdgeScheduler& scheduler, int index) {
    const bool in_prompt_tokens = &scheduler == &prompts_ && !prefill_.graph.empty();
    if (!in_prompt_tokens) scheduler.Correct(index, work);
  });
}

}  // namespace millrace::cluster
