#include "cluster/control/pipelines/pipelines.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "base/log.h"
#include "sched/step_log.h"

namespace millrace::cluster {
namespace {

// Back-off for opening a lost pipeline's route again.
constexpr Duration kRetryFirst = Duration::Seconds(0.05);
constexpr Duration kRetryMost = Duration::Seconds(2);
constexpr int kLossesTold = 4;            // in a row, before requests are refused for them
constexpr double kTokenTimeWeight = 0.1;  // of the newest step in the moving average

std::string RetryKey(const std::vector<PipelineHop>& hops) {
  std::string key;
  for (const PipelineHop& hop : hops) {
    key += fmt::format("{}[{},{})", hop.shards.front().value(), hop.layers.begin, hop.layers.end);
  }
  return key;
}

std::vector<PipelineHop> HopsOf(const Layout& layout, const Route& route) {
  std::vector<PipelineHop> hops;
  for (const Hop& hop : route) {
    PipelineHop& there = hops.emplace_back();
    there.layers = hop.layers;
    for (const Slot& slot : layout.stages[static_cast<size_t>(hop.stage)].ranks) {
      there.shards.push_back(slot.shard);
    }
  }
  return hops;
}

// All pipelines write to one log, so each line names its pipeline. `line` is a JSON object.
std::function<void(std::string_view)> NamedLines(std::function<void(std::string_view)> write,
                                                 PipelineId id) {
  return [write = std::move(write),
          start = fmt::format("{{\"pipeline\":{},", id.value())](std::string_view line) {
    MR_CHECK(line.starts_with('{'));
    write(start + std::string(line.substr(1)));
  };
}

// What it has carried along each of its edges. A prompt counts where its first token was computed.
EdgeFlows::Flow FlowOf(const Pipeline& pipeline) {
  const sched::SchedulerStats stats = pipeline.scheduler->Stats();
  uint64_t tokens = 0;
  if (pipeline.role != StageRole::kDecode) tokens += stats.prompt_tokens;
  if (pipeline.role != StageRole::kPrefill) tokens += stats.generation_tokens;
  return {.tokens = static_cast<int64_t>(tokens),
          .requests = static_cast<int64_t>(stats.requests_accepted)};
}

}  // namespace

bool Pipeline::Uses(WorkerId worker) const {
  return std::ranges::any_of(workers, [&](const std::vector<WorkerId>& hop) {
    return std::ranges::find(hop, worker) != hop.end();
  });
}

Pipelines::Pipelines(PipelinesOptions options, const Membership& members, IdSource& ids,
                     Outbox& outbox, KvMemory& memory)
    : options_(std::move(options)),
      members_(members),
      ids_(ids),
      outbox_(outbox),
      memory_(memory) {}

Pipeline* Pipelines::Find(PipelineId id) {
  const auto found = pipelines_.find(id);
  return found == pipelines_.end() ? nullptr : &found->second;
}

std::vector<PipelineId> Pipelines::Using(WorkerId worker) const {
  std::vector<PipelineId> found;
  for (const auto& [id, pipeline] : pipelines_) {
    if (pipeline.Uses(worker)) found.push_back(id);
  }
  return found;
}

std::vector<PipelineId> Pipelines::Using(const std::vector<ShardId>& stage) const {
  std::vector<PipelineId> found;
  for (const auto& [id, pipeline] : pipelines_) {
    const auto hop = std::ranges::find(pipeline.hops, stage, &PipelineHop::shards);
    if (hop != pipeline.hops.end()) found.push_back(id);
  }
  return found;
}

bool Pipelines::RouteOrder::Less(StageRole role_a, const Route& a, StageRole role_b,
                                 const Route& b) {
  if (role_a != role_b) return role_a < role_b;
  return std::ranges::lexicographical_compare(a, b, [](const Hop& x, const Hop& y) {
    return std::tie(x.stage, x.layers.begin, x.layers.end) <
           std::tie(y.stage, y.layers.begin, y.layers.end);
  });
}

// By id, so that the first of several with the same route is found.
void Pipelines::Index() {
  by_route_.clear();
  for (const auto& [id, pipeline] : pipelines_) {
    if (!pipeline.retiring) by_route_.try_emplace({pipeline.role, pipeline.route}, id);
  }
}

Pipeline* Pipelines::FindOrOpen(const Layout& layout, const Route& route, StageRole role,
                                Time now) {
  const auto found = by_route_.find(RouteOrder::View(role, &route));
  if (found != by_route_.end() && !at(found->second).retiring) return &at(found->second);
  const bool up = std::ranges::all_of(
      route, [&](const Hop& hop) { return layout.stages[static_cast<size_t>(hop.stage)].Up(); });
  return up ? Open(layout, route, role, now) : nullptr;
}

Pipeline* Pipelines::Open(const Layout& layout, const Route& route, StageRole role, Time now) {
  Pipeline pipeline;
  pipeline.route = route;
  pipeline.role = role;
  pipeline.shares = SharesWorkers(layout, route);
  for (const Hop& hop : route) {
    const LayoutStage& stage = layout.stages[static_cast<size_t>(hop.stage)];
    PipelineHop& there = pipeline.hops.emplace_back();
    there.layers = hop.layers;
    std::vector<WorkerId>& ids = pipeline.workers.emplace_back();
    for (const Slot& slot : stage.ranks) {
      const BitClass bits = members_.at(*slot.worker).bits;
      if (ids.empty() && pipeline.hops.size() == 1) pipeline.bits = bits;
      MR_CHECK(bits == pipeline.bits) << "a pipeline of two bit classes";
      pipeline.protocol = std::min(pipeline.protocol, slot.protocol);
      there.ranks.push_back(members_.at(*slot.worker).address);
      there.shards.push_back(slot.shard);
      ids.push_back(*slot.worker);
    }
    pipeline.names.push_back(members_.at(ids.front()).join.name);
    pipeline.to_open.insert(ids.begin(), ids.end());
  }
  const auto retry = retries_.find(RetryKey(pipeline.hops));
  if (retry != retries_.end() && now < retry->second.at) return nullptr;
  sched::SchedulerOptions options = options_.scheduler;
  options.num_blocks = BlocksAlone(layout, route, options);
  options.stages = static_cast<int>(route.size());
  options.even_steps = true;
  if (pipeline.shares) options.watermark = 0;
  auto scheduler = sched::Scheduler::Create(options);
  if (!scheduler.ok()) {
    MR_LOG(error, "cannot open a pipeline: {}", scheduler.status().message());
    retries_[RetryKey(pipeline.hops)] = {now + kRetryMost, kRetryMost, 1, scheduler.status()};
    return nullptr;
  }
  pipeline.scheduler = std::move(*scheduler);
  pipeline.id = PipelineId(ids_.Next());
  if (options_.step_log) {
    pipeline.scheduler = sched::NewRecordingScheduler(std::move(pipeline.scheduler), options,
                                                      NamedLines(options_.step_log, pipeline.id));
  }
  pipeline.prefill = sched::PrefillMeter(options.costs);
  if (role == StageRole::kPrefill) {
    LimitPrompts(pipeline);
  } else if (options_.tpot_limit) {
    pipeline.budget.emplace(*options_.tpot_limit, options.max_num_batched_tokens);
  }
  memory_.Open(pipeline.id, KvMemory::RanksOf(layout, route, options.block_size),
               options.num_blocks, pipeline.shares, *pipeline.scheduler);
  SendOpen(pipeline, layout, options.num_blocks);
  pipeline.opened_at = now;
  ++opened_;
  turns_.Open(pipeline.id, pipeline.workers);
  pipeline.edges = flows_.Opened(pipeline.role, pipeline.names);
  by_route_.insert_or_assign({role, route}, pipeline.id);
  return &pipelines_.emplace(pipeline.id, std::move(pipeline)).first->second;
}

// All hops are saturated by as many tokens as the slowest to saturate needs.
void Pipelines::LimitPrompts(Pipeline& pipeline) {
  int64_t tokens = 0;
  for (const std::vector<WorkerId>& hop : pipeline.workers) {
    for (WorkerId worker : hop) {
      const auto& profile = members_.at(worker).profile;
      if (profile == nullptr) return;
      tokens = std::max(tokens, profile->saturation_tokens);
    }
  }
  const int64_t most = options_.scheduler.max_num_batched_tokens;
  pipeline.scheduler->LimitSteps(
      {.tokens_before_prompts = static_cast<int>(std::min(tokens, most))});
}

void Pipelines::FollowProfile(WorkerId worker) {
  for (auto& [id, pipeline] : pipelines_) {
    if (pipeline.role == StageRole::kPrefill && pipeline.Uses(worker)) LimitPrompts(pipeline);
  }
}

void Pipelines::SendOpen(const Pipeline& pipeline, const Layout& layout, int num_blocks) {
  const sched::SchedulerOptions& each = options_.scheduler;
  for (size_t hop = 0; hop < pipeline.hops.size(); ++hop) {
    // All ranks have the same activations, so only the first caches them.
    std::vector<int> cache_at =
        CacheActivationsAt(layout, pipeline.hops[hop].layers, pipeline.role);
    for (size_t rank = 0; rank < pipeline.workers[hop].size(); ++rank) {
      outbox_.Send(pipeline.workers[hop][rank],
                   OpenPipeline{.pipeline = pipeline.id,
                                .hops = pipeline.hops,
                                .hop = static_cast<int>(hop),
                                .rank = static_cast<int>(rank),
                                .block_size = each.block_size,
                                .num_blocks = num_blocks,
                                .num_host_blocks = each.num_host_blocks,
                                .max_batched_tokens = each.max_num_batched_tokens,
                                .eos_token_ids = each.eos_token_ids,
                                .cache_activations_at = std::exchange(cache_at, {}),
                                .shares_memory = pipeline.shares});
    }
  }
}

// The replacement for a lost hop needs the activations that left the hop before it. A prefill
// pipeline also caches them where decode pipelines split the layers.
std::vector<int> Pipelines::CacheActivationsAt(const Layout& layout, LayerRange hop,
                                               StageRole role) const {
  std::set<int> at = {hop.end};
  for (int stage = 0; role == StageRole::kPrefill && stage < std::ssize(layout.stages); ++stage) {
    if (layout.decode.ExitsOf(stage).empty()) continue;
    at.insert(layout.stages[static_cast<size_t>(stage)].plan.layers.end);
  }
  std::erase_if(at, [&](int layer) {
    return layer <= hop.begin || layer > hop.end || layer == options_.num_layers;
  });
  return {at.begin(), at.end()};
}

bool Pipelines::Opened(Pipeline& pipeline, WorkerId worker, Time now) {
  if (pipeline.to_open.erase(worker) == 0) return false;
  if (!pipeline.to_open.empty()) return true;
  if (pipeline.protocol < kProtocolTestSteps) {
    pipeline.open = true;
    return true;
  }
  auto test = std::make_shared<StepPlan>();
  test->id = kTestStep;
  const PipelineStep step{pipeline.id, std::move(test), 0};
  for (WorkerId first : pipeline.workers.front()) outbox_.Send(first, step);
  pipeline.tested_at = now;
  return true;
}

bool Pipelines::Tested(Pipeline& pipeline) {
  if (!pipeline.tested_at) return false;
  pipeline.tested_at.reset();
  pipeline.open = true;
  return true;
}

std::optional<Pipelines::Closed> Pipelines::WhyClosed(const Layout& layout) const {
  const auto broken = [](const Retry& retry) {
    return Closed{fmt::format("A pipeline of the model's layers has broken {} times in a row: {}",
                              retry.losses, retry.reason.message()),
                  true};
  };
  const auto serves = [&](StageRole role) {
    return std::ranges::any_of(pipelines_, [&](const auto& entry) {
      return entry.second.open && !entry.second.retiring && entry.second.role == role;
    });
  };
  std::optional<Closed> closed;
  for (const auto& [route, role] : layout.pipelines) {
    const bool up = std::ranges::all_of(
        route, [&](const Hop& hop) { return layout.stages[static_cast<size_t>(hop.stage)].Up(); });
    if (!up || serves(role)) continue;
    const auto retry = retries_.find(RetryKey(HopsOf(layout, route)));
    if (retry != retries_.end() && retry->second.losses >= kLossesTold)
      return broken(retry->second);
    closed = Closed{"A pipeline of the model's layers is being opened and tested."};
  }
  // Where routes branch, a pipeline is opened when a request needs it.
  if (!layout.pipelines.empty() || !pipelines_.empty()) return closed;
  for (const auto& [key, retry] : retries_) {
    if (retry.losses >= kLossesTold) return broken(retry);
  }
  return closed;
}

void Pipelines::RetireUnplanned(const Layout& layout) {
  for (auto& entry : pipelines_) {
    Pipeline& pipeline = entry.second;
    bool kept = !pipeline.retiring;
    Route route;
    for (const PipelineHop& hop : pipeline.hops) {
      const auto place = std::ranges::find_if(layout.stages, [&](const LayoutStage& stage) {
        return std::ranges::equal(stage.ranks, hop.shards, {}, &Slot::shard);
      });
      kept = kept && place != layout.stages.end();
      if (kept) route.push_back({static_cast<int>(place - layout.stages.begin()), hop.layers});
    }
    kept = kept && layout.GraphOf(pipeline.role).Contains(route) &&
           SharesWorkers(layout, route) == pipeline.shares;
    if (kept) {
      pipeline.route = std::move(route);
    } else {
      Retire(pipeline);
    }
  }
  Index();
  flows_before_layout_ = Flows();
}

void Pipelines::RetireClosing(const Layout& layout) {
  for (auto& [id, pipeline] : pipelines_) {
    if (pipeline.retiring) continue;  // its route may be of an earlier layout
    const bool closing = std::ranges::any_of(pipeline.route, [&](const Hop& hop) {
      return layout.stages[static_cast<size_t>(hop.stage)].closing;
    });
    if (closing) Retire(pipeline);
  }
  Index();
}

void Pipelines::Retire(Pipeline& pipeline) {
  pipeline.retiring = true;
  memory_.Retire(pipeline.id);
}

void Pipelines::Remove(Pipeline& pipeline, RequestId request) {
  pipeline.requests.Remove(request);
  memory_.Release(pipeline.id, request);
}

void Pipelines::BackOff(const Pipeline& pipeline, const Status& reason, Time now) {
  Retry& retry = retries_[RetryKey(pipeline.hops)];
  retry.back_off = std::clamp(retry.back_off + retry.back_off, kRetryFirst, kRetryMost);
  retry.at = now + retry.back_off;
  ++retry.losses;
  retry.reason = reason;
}

void Pipelines::Close(PipelineId id, const std::vector<PipelineHop>& kept) {
  const auto found = pipelines_.find(id);
  for (const PipelineHop& hop : found->second.hops) {
    if (std::ranges::find(kept, hop.shards, &PipelineHop::shards) != kept.end()) continue;
    for (const WorkerAddress& rank : hop.ranks) outbox_.Send(rank.worker, ClosePipeline{id});
  }
  turns_.Close(id, dirty_);
  dirty_.erase(id);
  if (kept.empty()) memory_.Close(id);
  flows_.Closed(found->second.edges, FlowOf(found->second));
  closed_ += found->second.scheduler->Stats().CountersOnly();
  pipelines_.erase(found);
  Index();
}

void Pipelines::TouchAll() {
  for (const auto& [id, pipeline] : pipelines_) {
    if (pipeline.open) dirty_.insert(id);
  }
}

Status Pipelines::Commit(Pipeline& pipeline, const StepResult& result, Time now,
                         std::vector<RequestOutput>& outputs) {
  if (!retries_.empty()) retries_.erase(RetryKey(pipeline.hops));
  const auto step = pipeline.timer.Done(result.id, now);
  if (step) pipeline.watch.Ended(*step);
  const bool measured = step && pipeline.prefill.Ended(*step);
  if (measured) last_prefill_tokens_per_s_ = pipeline.prefill.measured_tokens_per_s();
  if (step && step->decodes > 0) {
    const double weight = pipeline.token_s > 0 ? kTokenTimeWeight : 1;
    pipeline.token_s += weight * (step->round_trip.seconds() - pipeline.token_s);
  }
  if (step && pipeline.budget && pipeline.budget->Ended(*step)) {
    pipeline.scheduler->LimitSteps({.tokens_beside_decodes = pipeline.budget->tokens()});
  }
  const bool swaps = options_.scheduler.num_host_blocks > 0 && pipeline.hops.size() == 1;
  if (measured && swaps) pipeline.scheduler->SetCosts(pipeline.prefill.costs());
  Status taken = pipeline.scheduler->Commit(result, now, outputs, pipeline.pulls);
  dirty_.insert(pipeline.id);
  if (pipeline.scheduler->steps_in_flight() == 0) turns_.Idle(pipeline.id, dirty_);
  return taken;
}

std::optional<double> Pipelines::PrefillTokensPerS(const Pipeline& pipeline) const {
  const std::optional<double> here = pipeline.prefill.measured_tokens_per_s();
  return here ? here : last_prefill_tokens_per_s_;
}

std::set<PipelineId> Pipelines::FormSteps(Time now, const std::function<void(Pipeline&)>& formed) {
  const auto form = [&](const std::set<PipelineId>& ids) {
    for (PipelineId id : ids) {
      Pipeline* pipeline = Find(id);
      if (pipeline == nullptr || !pipeline->open) continue;
      Form(*pipeline, now);
      formed(*pipeline);
    }
  };
  form(std::exchange(dirty_, {}));
  form(std::exchange(ask_again_, {}));  // pipelines that waited for one that formed no step
  dirty_.merge(std::exchange(ask_again_, {}));
  return memory_.EndRound();
}

void Pipelines::Form(Pipeline& pipeline, Time now) {
  const uint64_t returns = memory_.BeforeSteps(pipeline.id);
  if (turns_.MayStep(pipeline.id)) {
    for (;;) {
      const sched::NextStep next = pipeline.scheduler->Schedule(now, pipeline.pulls);
      for (const sched::PreemptionRecord& p : next.preemptions) MR_LOG(info, "{}", p.Describe());
      if (!next) break;
      pipeline.timer.Submitted(*next.plan, now);
      const PipelineStep step{pipeline.id, std::make_shared<const StepPlan>(*next.plan), returns};
      for (WorkerId worker : pipeline.workers.front()) outbox_.Send(worker, step);
    }
    turns_.Stepped(pipeline.id, pipeline.scheduler->steps_in_flight() > 0, ask_again_);
    memory_.AfterSteps(pipeline.id);
  }
}

sched::SchedulerStats Pipelines::Stats() const {
  sched::SchedulerStats sum = closed_;
  for (const auto& [id, pipeline] : pipelines_) sum += pipeline.scheduler->Stats();
  return sum;
}

EdgeFlows::Table Pipelines::Flows() const {
  EdgeFlows::Table table = flows_.Added();
  for (const auto& [id, pipeline] : pipelines_) {
    const EdgeFlows::Flow flow = FlowOf(pipeline);
    for (const EdgeFlows::Key& edge : pipeline.edges) table[edge] += flow;
  }
  return table;
}

std::optional<StalledRequest> Pipelines::Stalled(Time now) const {
  for (const auto& [id, pipeline] : pipelines_) {
    if (!pipeline.open) continue;
    auto stalled = pipeline.scheduler->Stalled(now);
    if (!stalled) continue;
    const bool in_step = pipeline.scheduler->steps_in_flight() > 0;
    return StalledRequest{std::move(*stalled),
                          in_step ? pipeline.names : std::vector<std::string>()};
  }
  return std::nullopt;
}

void Pipelines::CheckIntegrity() const {
  for (const auto& [id, pipeline] : pipelines_) {
    pipeline.scheduler->CheckIntegrity();
    for (const auto& hop : pipeline.workers) {
      for (WorkerId worker : hop) {
        MR_CHECK(members_.Find(worker) != nullptr) << "pipeline " << id << " has a lost worker";
      }
    }
  }
}

}  // namespace millrace::cluster
