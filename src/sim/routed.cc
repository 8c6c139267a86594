#include "sim/routed.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "sim/instance.h"

namespace millrace::sim {
namespace {

constexpr uint64_t kRoutedProgressEvery = 64;  // arrivals

cost::BatchShape Sum(const cost::BatchShape& a, const cost::BatchShape& b) {
  return {.prefill_tokens = a.prefill_tokens + b.prefill_tokens,
          .prefill_tokens_squared = a.prefill_tokens_squared + b.prefill_tokens_squared,
          .prefill_sequences = a.prefill_sequences + b.prefill_sequences,
          .decode_sequences = a.decode_sequences + b.decode_sequences,
          .decode_context = a.decode_context + b.decode_context};
}

Status CheckLinks(const RoutedOptions& options, const Links& links) {
  const auto node_of = [&](const std::optional<int>& stage) {
    return stage ? options.plan.stages[*stage].nodes.front() : options.cluster.coordinator();
  };
  const auto name_of = [&](int node) {
    return node == options.cluster.coordinator() ? "the coordinator"
                                                 : options.cluster.nodes[node].name;
  };
  for (const PlanEdge& edge : options.plan.edges) {
    const int from = node_of(edge.from), to = node_of(edge.to);
    if (links.Connected(from, to)) continue;
    return InvalidArgument(
        fmt::format("the plan sends from {} to {}, and the cluster has no link "
                    "between them",
                    name_of(from), name_of(to)));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Routed>> Routed::Create(RoutedOptions options) {
  if (options.stages.size() != options.plan.stages.size()) {
    return InvalidArgument(fmt::format("{} stage costs for a plan of {} stages",
                                       options.stages.size(), options.plan.stages.size()));
  }
  const int nodes = static_cast<int>(options.cluster.nodes.size());
  std::vector<int64_t> kv;
  for (size_t i = 0; i < options.stages.size(); ++i) {
    const StagePlan& stage = options.plan.stages[i];
    if (stage.nodes.empty() ||
        std::ranges::any_of(stage.nodes, [&](int n) { return n < 0 || n >= nodes; })) {
      return InvalidArgument(fmt::format("stage {} is on no node of the cluster", i));
    }
    MR_CHECK(options.stages[i].per_layer != nullptr);
    kv.push_back(options.stages[i].kv_token_layers);
  }
  Links links(options.cluster);
  MR_RETURN_IF_ERROR(CheckLinks(options, links));
  MR_ASSIGN_OR_RETURN(cluster::Router router,
                      cluster::Router::Create(options.plan, std::move(kv), options.router));
  return std::unique_ptr<Routed>(
      new Routed(std::move(options), std::move(router), std::move(links)));
}

std::vector<NodeIndex> UsedNodes(const Plan& plan) {
  std::set<NodeIndex> nodes;
  for (const StagePlan& stage : plan.stages) nodes.insert(stage.nodes.begin(), stage.nodes.end());
  return {nodes.begin(), nodes.end()};
}

Routed::Routed(RoutedOptions options, cluster::Router router, Links links)
    : options_(std::move(options)),
      router_(std::move(router)),
      links_(std::move(links)),
      recorder_(options_.slo, options_.measure_from),
      prompts_(options_.scheduler.prefix_caching),
      stages_(options_.stages.size()),
      availability_(static_cast<int>(options_.cluster.nodes.size())) {
  BeginMembership();
}

RoutedReport Routed::Run(Workload& workload) {
  std::optional<SimRequest> next = workload.Next();
  if (next) events_.Push(next->arrival, {});
  Time now;
  for (;;) {
    const std::optional<Time> change = NextChange();
    if (!change && events_.empty()) break;
    const Time at = change ? *change : events_.next_time();
    if (options_.stop_at && at > *options_.stop_at) {
      now = *options_.stop_at;
      break;
    }
    now = at;
    if (change) {
      Change(now);
      continue;
    }
    const Event event = events_.Pop();
    ++events_done_;
    if (event.what == What::kArrival) {
      Arrive(*next);
      next = workload.Next();
      if (next) events_.Push(next->arrival, {});
    } else {
      Handle(event, now);
    }
  }
  return Report(now);
}

void Routed::Handle(const Event& event, Time now) {
  if (event.what == What::kStageEnd) {
    if (event.life == stages_[event.index].life) EndStage(event.index, now);
    return;
  }
  if (parts_[event.index].pipeline->lost) return Free(event.index);
  if (event.what == What::kStepEnd) return EndStep(event.index, now);
  const Part& part = parts_[event.index];
  const int stage = part.pipeline->route[part.hop].stage;
  stages_[stage].waiting.push_back(event.index);
  if (stages_[stage].running.empty()) StartStage(stage, now);
}

void Routed::Arrive(const SimRequest& request) {
  if (on_progress && arrived_ % kRoutedProgressEvery == 0) on_progress(arrived_, request.arrival);
  ++arrived_;
  load_.Arrived(request.arrival, recorder_);
  const RequestId id = recorder_.Arrived(request);
  const Status routed = router_.Submit(
      {.id = id, .prompt_tokens = request.prompt_tokens, .output_tokens = request.output_tokens},
      request.arrival);
  if (!routed.ok()) return recorder_.Refused(id);
  FollowDecisions(request.arrival);
}

void Routed::FollowDecisions(Time now) {
  for (const cluster::Router::Decision& decision : router_.TakeDecisions(now)) {
    if (decision.outcome != cluster::Router::Outcome::kRouted) {
      recorder_.Refused(decision.id);
      continue;
    }
    const std::shared_ptr<Pipeline>& pipeline = PipelineOf(decision.route);
    const SimRequest& request = recorder_.request(decision.id);
    auto begun = begun_.extract(decision.id);
    const Status added = pipeline->scheduler->Add(
        !begun.empty() ? std::move(begun.mapped())
                       : sched::NewRequest{.id = decision.id,
                                           .prompt = prompts_.Of(request, decision.id),
                                           .params = ParamsFor(request.output_tokens),
                                           .known_output_tokens = request.output_tokens},
        now);
    if (!added.ok()) {
      router_.Release(decision.id, 0, now);
      recorder_.Refused(decision.id);
      continue;
    }
    Submit(pipeline, now);
  }
}

// The router manages memory: it has reserved the request's KV on every hop. The scheduler of a
// pipeline therefore gets the capacity of the narrowest hop and never has to preempt.
const std::shared_ptr<Routed::Pipeline>& Routed::PipelineOf(const Route& route) {
  std::vector<int> key;
  for (const Hop& hop : route) key.insert(key.end(), {hop.stage, hop.layers.begin, hop.layers.end});
  auto& pipeline = pipelines_[key];
  if (pipeline) return pipeline;
  sched::SchedulerOptions scheduler = options_.scheduler;
  int64_t tokens = INT32_MAX;
  for (const Hop& hop : route) {
    tokens = std::min(tokens, options_.stages[hop.stage].kv_token_layers / hop.layers.size());
  }
  // Each request may leave most of a block empty.
  scheduler.num_blocks =
      static_cast<int>(tokens / scheduler.block_size) + scheduler.max_num_seqs + 1;
  scheduler.stages = static_cast<int>(route.size());
  scheduler.even_steps = true;  // as the controller's pipelines
  scheduler.watermark = 0;
  auto made = sched::Scheduler::Create(scheduler);
  MR_CHECK(made.ok()) << made.status().ToString();
  pipeline = std::make_shared<Pipeline>(Pipeline{route, std::move(*made)});
  return pipeline;
}

void Routed::Submit(const std::shared_ptr<Pipeline>& pipeline, Time now) {
  while (const StepPlan* plan = pipeline->scheduler->Schedule(now)) {
    const int slot = parts_.Take();
    Part& part = parts_[slot];
    part.pipeline = pipeline;
    part.hop = 0;
    part.shape = ShapeOf(*plan);
    AnswerTo(*plan, part.result);
    ++steps_;
    Send(slot, now);
  }
}

void Routed::Free(int slot) {
  parts_[slot].pipeline.reset();
  parts_.Free(slot);
}

void Routed::Send(int slot, Time now) {
  const Part& part = parts_[slot];
  const Route& route = part.pipeline->route;
  const int home = options_.cluster.coordinator();
  const int from = part.hop == 0 ? home : NodeOf(route[part.hop - 1].stage);
  const auto tokens = static_cast<double>(part.shape.tokens());
  if (part.hop == route.size()) {
    const auto told = static_cast<double>(part.result.sequences.size());
    events_.Push(links_.Send(from, home, told * options_.token_bytes, now),
                 {What::kStepEnd, 0, slot});
    return;
  }
  const double bytes =
      tokens * (part.hop == 0 ? options_.token_bytes : options_.activation_bytes_per_token);
  events_.Push(links_.Send(from, NodeOf(route[part.hop].stage), bytes, now),
               {What::kPartArrival, 0, slot});
}

void Routed::StartStage(int index, Time now) {
  Stage& stage = stages_[index];
  int64_t tokens = 0;
  while (!stage.waiting.empty()) {
    const int slot = stage.waiting.front();
    if (parts_[slot].pipeline->lost) {
      stage.waiting.pop_front();
      Free(slot);
      continue;
    }
    const int64_t more = parts_[slot].shape.tokens();
    if (!stage.running.empty() && tokens + more > options_.stage_batch_tokens_max) break;
    tokens += more;
    stage.running.push_back(slot);
    stage.waiting.pop_front();
  }
  if (stage.running.empty()) return;
  const Duration took = Duration::Seconds(StageSeconds(index));
  stage.busy = stage.busy + took;
  stage.end = now + took;
  if (on_batch) {
    record_ = {.id = StepId(batches_), .batch = {}, .begin = {now}, .end = {stage.end}};
    for (const int slot : stage.running) record_.batch = Sum(record_.batch, parts_[slot].shape);
    on_batch(index, record_);
  }
  ++batches_;
  events_.Push(stage.end, {What::kStageEnd, stage.life, index});
}

// Layer by layer: between two borders, the batch has the same parts.
double Routed::StageSeconds(int index) const {
  const Stage& stage = stages_[index];
  std::set<int> borders;
  const auto layers_of = [&](int slot) {
    return parts_[slot].pipeline->route[parts_[slot].hop].layers;
  };
  cost::BatchShape leaving;
  for (const int slot : stage.running) {
    borders.insert({layers_of(slot).begin, layers_of(slot).end});
    if (layers_of(slot).end == options_.plan.num_layers) leaving = Sum(leaving, parts_[slot].shape);
  }
  double seconds = options_.stages[index].overhead_s;
  if (const cost::StepCost* head = options_.stages[index].head) seconds += head->Seconds(leaving);
  for (auto at = borders.begin(); std::next(at) != borders.end(); ++at) {
    cost::BatchShape shape;
    for (const int slot : stage.running) {
      const LayerRange layers = layers_of(slot);
      if (layers.begin <= *at && *at < layers.end) shape = Sum(shape, parts_[slot].shape);
    }
    seconds += (*std::next(at) - *at) * options_.stages[index].per_layer->Seconds(shape);
  }
  return seconds;
}

void Routed::EndStage(int index, Time now) {
  std::vector<int> done = std::exchange(stages_[index].running, {});
  for (const int slot : done) {
    if (parts_[slot].pipeline->lost) {
      Free(slot);
      continue;
    }
    ++parts_[slot].hop;
    Send(slot, now);
  }
  StartStage(index, now);
}

void Routed::EndStep(int slot, Time now) {
  const std::shared_ptr<Pipeline> pipeline = parts_[slot].pipeline;
  outputs_.clear();
  pipeline->scheduler->Commit(parts_[slot].result, now, outputs_);
  Free(slot);
  bool released = false;
  for (const RequestOutput& output : outputs_) {
    const SimRequest request = recorder_.request(output.request);
    if (!recorder_.Heard(output, now)) continue;
    router_.Release(output.request, request.prompt_tokens + request.output_tokens, now);
    released = true;
  }
  Submit(pipeline, now);
  if (released) FollowDecisions(now);
}

RoutedReport Routed::Report(Time now) const {
  RoutedReport report;
  report.latency = recorder_.report();
  if (!options_.membership.empty()) {
    report.membership = moves_;
    report.membership->Merge(availability_.Report(now));
    report.membership->machines = static_cast<int>(UsedNodes(options_.plan).size());
    for (int i = 0; i < std::ssize(options_.cluster.nodes); ++i) {
      report.node_paid_s.push_back(availability_.PaidSeconds(i, now));
    }
    const auto queued = static_cast<uint64_t>(router_.queued());
    report.membership->waited_most = std::max(report.membership->waited_most, queued);
    report.latency.refused += queued;  // no pipeline opened again
  }
  report.load = load_.samples();
  report.simulated_s = static_cast<double>(now.ns) * 1e-9;
  report.measured_s = std::max(0.0, (now - options_.measure_from).seconds());
  report.links = links_.Used();
  report.pipelines = pipelines_.size();
  report.steps = steps_;
  report.batches = batches_;
  report.events = events_done_;
  sched::SchedulerStats stats = lost_;
  for (const auto& [route, pipeline] : pipelines_) stats += pipeline->scheduler->Stats();
  report.prefix_query_tokens = stats.prefix_query_tokens;
  report.prefix_hit_tokens = stats.prefix_hit_tokens;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const int stage = static_cast<int>(i);
    const double seconds = options_.membership.empty()
                               ? report.simulated_s
                               : availability_.ReadySeconds(NodeOf(stage), now);
    report.stage_busy_share.push_back(seconds == 0 ? 0 : stages_[i].busy.seconds() / seconds);
    const auto capacity = static_cast<double>(router_.kv().capacity(stage));
    report.stage_kv_share.push_back(
        capacity == 0 ? 0 : static_cast<double>(router_.kv().used(stage)) / capacity);
  }
  return report;
}

}  // namespace millrace::sim
