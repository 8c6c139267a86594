#include "cluster/control/lifecycle/placements.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// In token layers. Assumed for stages whose memory is not known yet; more than any stage has.
constexpr int64_t kUnknownKv = int64_t{1} << 40;

// Keys of different clients never match. Neither do prompts that must not share a prefix.
std::string HintOf(const Requests::Request& request) {
  const sched::NewRequest& spec = request.spec;
  return spec.client + '\n' + spec.cache_salt + '\n' + spec.prompt_cache_key;
}

}  // namespace

Placements::Placements(const PlacementOptions& options, int block_size,
                       const Deployment& deployment, Pipelines& pipelines, Requests& requests,
                       const Transfers& transfers, KvMemory& memory)
    : options_(options),
      block_size_(block_size),
      deployment_(deployment),
      pipelines_(pipelines),
      requests_(requests),
      transfers_(transfers),
      memory_(memory),
      dispatcher_(
          options.dispatch.value_or(DispatchOptions{.policy = DispatchPolicy::kPredictedTime})) {}

// What was counted for the layout before is lost.
void Placements::FollowLayout() {
  router_.emplace(layout());
  epoch_ = layout().plan.epoch;
  for (const auto& [id, request] : requests_.all()) {
    if (request.placement) requests_.at(id).placement->counts = false;
  }
  ForEachWaiting([this](RequestId id) { Leave(id); });
}

template <typename Visit>
void Placements::ForEachWaiting(const Visit& visit) {
  std::optional<Requests::QueueKey> at;
  while ((at = requests_.NextWaiting(at, kAllQueues))) visit(at->second);
}

void Placements::Update() {
  if (!IsCurrent()) FollowLayout();
  stages_taken_down_ = false;
  no_room_.clear();
  serves_.clear();
  rooms_.clear();
  for (const LayoutStage& stage : layout().stages) rooms_.push_back(RoomOf(stage));
  CloseClassesThatCannotAnswer();
  LowerProtocols();
}

// Its reservations have changed, and with them the memory of the stages on its workers.
void Placements::UpdateRoom(const Pipeline& pipeline) {
  if (stages_taken_down_) return Update();
  for (size_t i = 0; i < rooms_.size(); ++i) {
    const LayoutStage& stage = layout().stages[i];
    const bool shares = std::ranges::any_of(
        stage.ranks, [&](const Slot& slot) { return slot.worker && pipeline.Uses(*slot.worker); });
    if (shares) rooms_[i].token_layers = RoomOf(stage).token_layers;
  }
}

// A prompt that was computed in such a class would wait there for a pipeline that decodes. If no
// class can answer, all wait anyway.
void Placements::CloseClassesThatCannotAnswer() {
  const auto differs = [&](const StageRoom& room) { return room.bits != rooms_.front().bits; };
  if (std::ranges::none_of(rooms_, differs) || !CanServe(layout())) return;
  std::set<BitClass> classes;
  for (const StageRoom& room : rooms_) {
    if (room.bits) classes.insert(*room.bits);
  }
  for (const BitClass bits : classes) {
    if (CanServe(layout(), {.bits = bits})) continue;
    for (StageRoom& room : rooms_) room.up = room.up && room.bits != bits;
  }
}

// The same for prompts of requests that older workers of the class cannot decode.
void Placements::LowerProtocols() {
  const auto is_old = [](const StageRoom& room) { return room.protocol < kProtocolVersion; };
  if (std::ranges::none_of(rooms_, is_old)) return;
  std::map<std::optional<BitClass>, int> answered;  // the newest protocol, by class
  for (StageRoom& room : rooms_) {
    const auto [newest, added] = answered.emplace(room.bits, kProtocolVersion);
    while (added && newest->second > kProtocolVersionOldest &&
           !CanServe(layout(), {.bits = room.bits, .protocol = newest->second})) {
      --newest->second;
    }
    room.protocol = std::min(room.protocol, newest->second);
  }
}

WorkerNeed Placements::WorkersFor(const Request& request) const {
  WorkerNeed need{.bits = request.bits, .protocol = ProtocolFor(*request.spec.params)};
  if (need.bits && options_.cross_class_replay && !CanServe(layout(), need)) need.bits.reset();
  return need;
}

bool Placements::LacksClass(const Request& request) const {
  const WorkerNeed need = WorkersFor(request);
  return need.bits && !CanServe(layout(), {.bits = need.bits});
}

bool Placements::LacksVersion(const Request& request) const {
  const WorkerNeed need = WorkersFor(request);
  return CanServe(layout(), {.bits = need.bits}) && !CanServe(layout(), need);
}

StageRoom Placements::RoomOf(const LayoutStage& stage) const {
  StageRoom room{.up = stage.Up(),
                 .token_layers = kUnknownKv,
                 .bits = stage.bits(),
                 .protocol = stage.protocol(),
                 .queues = !stage.shares_workers};
  for (const Slot& slot : stage.ranks) {
    if (!slot.loaded) continue;
    const auto limit =
        static_cast<int64_t>(options_.kv_high_water * static_cast<double>(slot.facts.kv_bytes));
    const int64_t each = std::max<int64_t>(1, slot.facts.kv_bytes_per_token_layer);
    room.token_layers = std::min(room.token_layers, (limit - memory_.claimed(*slot.worker)) / each);
  }
  return room;
}

bool Placements::FitsWhenEmpty(const Request& request) {
  std::vector<StageRoom> empty;
  for (const LayoutStage& stage : layout().stages) {
    StageRoom& room = empty.emplace_back(
        StageRoom{.up = true, .token_layers = kUnknownKv, .queues = !stage.shares_workers});
    if (std::ranges::all_of(stage.ranks, &Slot::loaded)) room.token_layers = stage.KvTokenLayers();
  }
  RouteNeed need = NeedOf(request);
  need.all_kv = int64_t{requests_.MostBlocks(request)} * block_size_;
  need.workers = {};
  return router_->Fits(need, empty);
}

bool Placements::NeedsPrompt(const Request& request) const {
  return !layout().prefill.empty() && request.waiting && request.waits_for == WaitsFor::kPrefill;
}

RouteNeed Placements::NeedOf(const Request& request) const {
  const int64_t block = block_size_;
  const int64_t prompt = request.prompt_tokens();
  return {.prompt = layout().prefill.empty() ? !layout().both.empty() : NeedsPrompt(request),
          .prompt_kv = sched::BlocksAtMost(request.spec, 2, block_size_) * block,
          .all_kv = requests_.EstimatedBlocks(request) * block,
          .prompt_work = prompt,
          .answer_work = requests_.EstimatedOutput(request),
          .workers = WorkersFor(request),
          .kv_at = transfers_.KvAt(request.spec.id)};
}

// The pipelines for this request that are opened in advance, or are being opened. Empty if the
// routes of some kind that it may take branch.
std::vector<Pipeline*> Placements::Candidates(const RouteNeed& need, Time now) {
  using enum StageRole;
  std::vector<Pipeline*> candidates;
  const auto add = [&](StageRole role) {
    for (const PlannedPipeline& planned : layout().pipelines) {
      if (planned.role != role || !MayRun(planned.route, need)) continue;
      Pipeline* pipeline = pipelines_.FindOrOpen(layout(), planned.route, role, now);
      if (pipeline != nullptr) candidates.push_back(pipeline);
    }
  };
  const auto branches = [&](StageRole role) {
    return !layout().GraphOf(role).empty() && layout().GraphOf(role).chains().empty();
  };
  const std::vector<StageRole> usual =
      need.prompt ? std::vector{kPrefill, kBoth} : std::vector{kDecode};
  if (std::ranges::any_of(usual, branches)) return {};
  for (const StageRole role : usual) add(role);
  const StageRole stand_in = need.prompt ? kDecode : kBoth;
  if (candidates.empty() && !branches(stand_in)) add(stand_in);
  return candidates;
}

// Whether the stages of the route are up and have workers as the request needs.
bool Placements::MayRun(const Route& route, const RouteNeed& need) const {
  return std::ranges::all_of(route, [&](const Hop& hop) {
    const StageRoom& room = rooms_[static_cast<size_t>(hop.stage)];
    return room.up && Suits(room, need.workers);
  });
}

bool Placements::HasRoom(const Pipeline& pipeline, int64_t kv_tokens) const {
  return std::ranges::all_of(pipeline.route, [&](const Hop& hop) {
    return rooms_[static_cast<size_t>(hop.stage)].token_layers >= kv_tokens * hop.layers.size();
  });
}

DispatchLoad Placements::LoadOf(const Pipeline& pipeline, const RouteNeed& need) const {
  DispatchLoad load = pipeline.requests.Load(pipeline.prefill.costs().prefill_tokens_per_s);
  load.rank = pipeline.open ? 0 : 1;
  // A decode goes where its KV has room.
  if (!need.prompt && !HasRoom(pipeline, need.all_kv)) load.rank += 2;
  return load;
}

// Null: no candidate is up, or the routes branch.
Pipeline* Placements::ChooseByLoad(const RouteNeed& need, Time now) {
  const std::vector<Pipeline*> candidates = Candidates(need, now);
  if (candidates.empty()) return nullptr;
  std::vector<DispatchLoad> loads;
  for (const Pipeline* pipeline : candidates) loads.push_back(LoadOf(*pipeline, need));
  return candidates[dispatcher_.Choose(loads)];
}

// Null: no walk is up and has room. A route that was lost a moment ago cannot be opened yet, so its
// first stage counts as down until the next Update.
Pipeline* Placements::ChooseByFlow(const RouteNeed& need, Time now) {
  for (size_t tries = 0; tries <= rooms_.size(); ++tries) {
    const std::optional<Walk> walk = router_->Choose(need, rooms_);
    if (!walk) return nullptr;
    Pipeline* pipeline = pipelines_.FindOrOpen(layout(), walk->route, walk->role, now);
    if (pipeline != nullptr) return pipeline;
    rooms_[static_cast<size_t>(walk->route.front().stage)].up = false;
    stages_taken_down_ = true;
  }
  return nullptr;
}

bool Placements::Serves(const WorkerNeed& need) {
  const auto found = std::ranges::find(serves_, need, &std::pair<WorkerNeed, bool>::first);
  if (found != serves_.end()) return found->second;
  return serves_.emplace_back(need, CanServe(layout(), need)).second;
}

// Where a request found no room, one like it that needs no less finds none. KV that it has
// somewhere only narrows its choice.
bool Placements::HadNoRoom(const RouteNeed& need) const {
  return std::ranges::any_of(no_room_, [&](const NoRoom& before) {
    return before.prompt == need.prompt && before.workers == need.workers &&
           before.prompt_kv <= need.prompt_kv && before.all_kv <= need.all_kv;
  });
}

std::optional<Placements::Choice> Placements::Choose(const Request& request, Time now) {
  const RouteNeed need = NeedOf(request);
  if (HadNoRoom(need)) return std::nullopt;
  const bool by_load = options_.dispatch.has_value() || !layout().states_flow;
  Pipeline* pipeline = by_load ? ChooseByLoad(need, now) : nullptr;
  if (pipeline == nullptr) pipeline = ChooseByFlow(need, now);
  if (pipeline == nullptr) {
    if (need.kv_at == nullptr && !stages_taken_down_) {
      no_room_.push_back({need.prompt, need.workers, need.prompt_kv, need.all_kv});
    }
    return std::nullopt;
  }
  const bool by_time =
      !options_.dispatch.has_value() || options_.dispatch->policy == DispatchPolicy::kPredictedTime;
  const bool is_new = request.waiting && request.waiting->resumed.empty();
  if (options_.prefers_cached && by_time && is_new && pipelines_.all().size() > 1) {
    return FastestOf(request, need, pipeline);
  }
  return Choice{{pipeline->role, pipeline->route}, pipeline, 0};
}

// When a request with such a prompt can begin to decode: after the prompts that the pipeline must
// compute first, the part of its own that is not cached, and the transfer of its KV if another
// pipeline decodes. A pipeline that has not computed prompts yet has the assumed rate.
Duration Placements::DecodesIn(const Pipeline& pipeline, int64_t prompt_tokens, int64_t cached,
                               double assumed_tokens_per_s) const {
  const int64_t tokens = pipeline.requests.prefill_tokens_ahead() + prompt_tokens - cached;
  const double rate = pipeline.prefill.measured_tokens_per_s().value_or(assumed_tokens_per_s);
  const bool hands_over = pipeline.role == StageRole::kPrefill;
  return Duration::Seconds(static_cast<double>(tokens) / rate +
                           (hands_over ? transfers_.HandOverSeconds(prompt_tokens) : 0));
}

// The usual pipeline, unless the request will probably decode sooner in another one: that has more
// of the prompt in its cache, or it decodes and the rest of the prompt is short. The saved prefill
// and the longer queue are compared in time.
Placements::Choice Placements::FastestOf(const Request& request, const RouteNeed& need,
                                         Pipeline* usual) {
  kv::PrefixChain names;
  const auto cached_in = [&](const Pipeline& pipeline) -> int64_t {
    return pipeline.scheduler->CachedTokens(*request.spec.prompt, request.spec.cache_salt, names);
  };
  const int64_t prompt = request.prompt_tokens(), cached_before = cached_in(*usual);
  const double assumed =
      usual->prefill.measured_tokens_per_s().value_or(usual->prefill.costs().prefill_tokens_per_s);
  Choice best{{usual->role, usual->route}, usual, cached_before};
  Duration least = DecodesIn(*usual, prompt, cached_before, assumed);
  for (auto& [id, pipeline] : pipelines_.all()) {
    if (&pipeline == usual || !pipeline.open || pipeline.retiring) continue;
    const bool stands_in = pipeline.role == StageRole::kDecode && need.prompt;
    const bool may = stands_in || pipeline.role == usual->role ||
                     (need.prompt && pipeline.role != StageRole::kDecode);
    const int64_t kv = pipeline.role == StageRole::kPrefill ? need.prompt_kv : need.all_kv;
    if (!may || !MayRun(pipeline.route, need) || !HasRoom(pipeline, kv)) continue;
    const int64_t cached = cached_in(pipeline);
    if (stands_in ? prompt - cached > options_.short_prompt_tokens : cached <= cached_before) {
      continue;
    }
    const Duration here = DecodesIn(pipeline, prompt, cached, assumed);
    if (here >= least) continue;
    least = here;
    best = {{pipeline.role, pipeline.route}, &pipeline, cached};
  }
  if (best.cached_tokens > 0 || best.pipeline != usual) return best;
  Pipeline* hinted = HintedFor(request, need, *usual);
  return hinted == nullptr ? best : Choice{{hinted->role, hinted->route}, hinted, 0};
}

// Null: no other pipeline. If it is busier by more than the prompt, waiting there would cost more
// than its cache can save.
Pipeline* Placements::HintedFor(const Request& request, const RouteNeed& need,
                                const Pipeline& usual) {
  if (request.spec.prompt_cache_key.empty()) return nullptr;
  const auto last = hints_.Find(HintOf(request));
  Pipeline* pipeline = last ? pipelines_.Find(*last) : nullptr;
  if (pipeline == nullptr || pipeline == &usual || !pipeline->open || pipeline->retiring) {
    return nullptr;
  }
  const int64_t kv = pipeline->role == StageRole::kPrefill ? need.prompt_kv : need.all_kv;
  if (pipeline->role != usual.role || !MayRun(pipeline->route, need) || !HasRoom(*pipeline, kv)) {
    return nullptr;
  }
  const int64_t busier =
      pipeline->requests.prefill_tokens_ahead() - usual.requests.prefill_tokens_ahead();
  return busier <= request.prompt_tokens() ? pipeline : nullptr;
}

Placements::Result Placements::Place(RequestId id, std::set<PipelineId>& full, Time now) {
  Request& request = requests_.at(id);
  MR_CHECK(!request.placement) << "request " << id << " has a place already";
  std::optional<Choice> choice = Choose(request, now);
  request.lacks = TimeCause::kNoRoom;
  if (!choice && !Serves({})) {
    request.lacks = TimeCause::kNoPipeline;
    return Result::kNoPipeline;
  }
  if (!choice) {
    const WorkerNeed workers = WorkersFor(request);
    if (Serves(workers)) return Result::kNoRoom;
    const bool lacks_class = !Serves({.bits = workers.bits});
    request.lacks = lacks_class ? TimeCause::kOtherBits : TimeCause::kNoPipeline;
    return Result::kLacksWorkers;
  }
  const PipelineId pipeline = choice->pipeline->id;
  if (full.contains(pipeline)) return Result::kNoRoom;
  const RouteNeed need = NeedOf(request);
  const int64_t kv = choice->walk.role == StageRole::kPrefill ? need.prompt_kv : need.all_kv;
  if (!memory_.Reserve(pipeline, id, static_cast<int>(kv / block_size_))) {
    full.insert(pipeline);
    return Result::kNoRoom;
  }
  if (!request.spec.prompt_cache_key.empty()) hints_.Note(HintOf(request), pipeline);
  router_->Charge(choice->walk, need);
  request.lacks = TimeCause::kNoPipeline;  // until the pipeline is open
  request.placement = Placement{.walk = std::move(choice->walk),
                                .pipeline = pipeline,
                                .answer_work = need.answer_work,
                                .delivered_before = request.delivered,
                                .cached_tokens = choice->cached_tokens};
  UpdateRoom(*choice->pipeline);
  return Result::kPlaced;
}

void Placements::Leave(RequestId id) {
  Request& request = requests_.at(id);
  if (!request.placement) return;
  const Placement placement = *std::exchange(request.placement, std::nullopt);
  memory_.Release(placement.pipeline, id);
  if (!placement.counts || !IsCurrent()) return;
  const int64_t answered = request.delivered - placement.delivered_before;
  router_->Correct(placement.walk, answered - placement.answer_work);
}

void Placements::DropLost() {
  Update();
  ForEachWaiting([this](RequestId id) {
    const std::optional<Placement>& placement = requests_.at(id).placement;
    if (!placement) return;
    const Pipeline* pipeline = pipelines_.Find(placement->pipeline);
    const bool lost = pipeline == nullptr || pipeline->retiring ||
                      std::ranges::any_of(placement->walk.route, [&](const Hop& hop) {
                        return !layout().stages[static_cast<size_t>(hop.stage)].Up();
                      });
    if (lost) Leave(id);
  });
}

}  // namespace millrace::cluster
