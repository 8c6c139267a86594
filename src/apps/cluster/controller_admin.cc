#include "apps/cluster/controller_admin.h"

#include <utility>
#include <vector>

#include "apps/cluster/cluster_metrics.h"
#include "base/log.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {
namespace {

Json RangesOf(const std::vector<LayerRange>& layers) {
  Json all = Json::array();
  for (const LayerRange& range : layers) all.push_back({range.begin, range.end});
  return all;
}

std::string StateOf(const cluster::WorkerStatus& worker) {
  if (!worker.usable) return "unusable";
  if (worker.draining) return "draining";
  return worker.layers.empty() ? "idle" : "serving";
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// Into a worker's object: what it said of its machine.
void PutMachine(const cluster::WorkerStatus& worker, Json& json) {
  json["memory_bytes"] = worker.memory_bytes;
  json["cores"] = OrNull(worker.machine.cores);
  json["zone"] = worker.machine.zone;
  json["price_usd_per_hour"] = OrNull(worker.machine.price_usd_per_hour);
  json["spot"] = worker.machine.spot;
  json["numeric_class"] = worker.numeric_class;
}

Json MachineJson(const cluster::WorkerStatus& worker) {
  Json json = {{"name", worker.name}, {"device", worker.device}, {"host", worker.host_id}};
  PutMachine(worker, json);
  json["profile"] = worker.profile ? Json(cost::FormatProfileLine(*worker.profile)) : Json();
  return json;
}

Json NoticeJson(const cluster::WorkerStatus& worker) {
  if (!worker.notice) return {};
  const NoticeOrigin& origin = worker.notice->origin;
  return {{"source", NoticeSourceName(origin.source)},
          {"kind", NoticeKindName(origin.kind)},
          {"leaves", worker.notice->hard},
          {"in_s", worker.notice_left ? Json(worker.notice_left->seconds()) : Json()}};
}

Json ToJson(const cluster::LinkStatus& link) {
  return {{"from", link.from},
          {"to", link.to},
          {"latency_s", link.latency_s},
          {"bytes_per_s", link.bytes_per_s},
          {"age_s", link.age.seconds()}};
}

bool IsOfController(const cluster::LinkStatus& link) {
  return link.from == cluster::EdgeFlows::kCoordinator ||
         link.to == cluster::EdgeFlows::kCoordinator;
}

Json ToJson(const cluster::WorkerStatus& worker) {
  Json json = {{"name", worker.name},
               {"state", StateOf(worker)},
               {"address", worker.control},
               {"device", worker.device},
               {"note", worker.note},
               {"notice", NoticeJson(worker)},
               {"layers", RangesOf(worker.layers)},
               {"rank", worker.rank},
               {"ranks", worker.ranks},
               {"weight_bytes", worker.weight_bytes},
               {"kv_bytes", worker.kv_bytes},
               {"batches", worker.batches},
               {"silent_s", worker.silent.seconds()}};
  PutMachine(worker, json);
  json["fingerprint"] = worker.fingerprint;
  if (worker.profile) {
    const cost::ProfileRates rates = cost::RatesOf(*worker.profile);
    json["prefill_tokens_per_s"] = rates.prefill_tokens_per_s;
    json["decode_tokens_per_s"] = rates.decode_tokens_per_s;
  }
  return json;
}

Json ToJson(const cluster::PipelineStatus& pipeline) {
  const char* state = pipeline.retiring ? "retiring" : pipeline.open ? "open" : "opening";
  return {{"id", pipeline.id.value()},
          {"state", state},
          {"role", plan::RoleName(pipeline.role)},
          {"numeric_class", pipeline.numeric_class},
          {"fingerprint", pipeline.fingerprint},
          {"workers", pipeline.workers},
          {"layers", RangesOf(pipeline.layers)},
          {"requests", pipeline.requests},
          {"blocks_total", pipeline.blocks_total},
          {"blocks_used", pipeline.blocks_used}};
}

Json ToJson(const cluster::StageStatus& stage) {
  return {{"workers", stage.workers},           {"layers", RangesOf({stage.layers})},
          {"role", plan::RoleName(stage.role)}, {"up", stage.up},
          {"kv_blocks", stage.kv_blocks},       {"kv_blocks_used", stage.kv_blocks_used},
          {"running", stage.running},           {"waiting", stage.waiting}};
}

Json ToJson(const cluster::EdgeStatus& edge) {
  const cluster::EdgeFlows::Flow& flow = edge.since_plan;
  Json json = {{"from", edge.from},
               {"to", edge.to},
               {"phase", plan::PhaseName(edge.phase)},
               {"planned_tokens_per_s", edge.planned_tokens_per_s},
               {"tokens", flow.tokens},
               {"requests", flow.requests}};
  if (edge.phase == EdgePhase::kHandOver) {
    json["bytes"] = flow.bytes;
    json["seconds"] = flow.seconds;
    json["bytes_per_s"] =
        flow.seconds > 0 ? Json(static_cast<double>(flow.bytes) / flow.seconds) : Json();
  }
  return json;
}

Json ToJson(const ServerSizes& sizes) {
  return {{"block_size", OrNull(sizes.block_size)},
          {"max_num_seqs", OrNull(sizes.max_num_seqs)},
          {"max_num_batched_tokens", OrNull(sizes.max_num_batched_tokens)},
          {"max_model_len", OrNull(sizes.max_model_len)},
          {"enable_prefix_caching", OrNull(sizes.enable_prefix_caching)}};
}

Json ToJson(const cluster::ControllerCounters& counters) {
  Json all = Json::object();
  for (const auto& counter : cluster::AllControllerCounters()) {
    all[counter.name] = counters.*counter.value;
  }
  return all;
}

class ControllerAdmin : public serve::ClusterAdmin {
 public:
  ControllerAdmin(cluster::ControllerHost& host, std::string model,
                  std::unique_ptr<ops::KeptPlan> kept)
      : host_(host), model_(std::move(model)), kept_(std::move(kept)) {
    if (!kept_) return;
    host_.OnPlanSettled([this](int64_t epoch, bool in_force) {
      settling_.Put([=, this] { Settle(epoch, in_force); });
    });
  }

  Json Describe() override {
    const cluster::ClusterStatus status = host_.Describe();
    Json workers = Json::array(), pipelines = Json::array(), stages = Json::array(),
         edges = Json::array(), links = Json::array(), still = Json::array();
    for (const auto& worker : status.workers) workers.push_back(ToJson(worker));
    for (const auto& [name, reason] : status.still) {
      still.push_back({{"name", name}, {"reason", reason}});
    }
    for (const auto& pipeline : status.pipelines) pipelines.push_back(ToJson(pipeline));
    for (const auto& stage : status.stages) stages.push_back(ToJson(stage));
    for (const auto& edge : status.edges) {
      if (edge.planned || edge.since_plan.requests > 0) edges.push_back(ToJson(edge));
    }
    for (const auto& link : status.links) {
      if (IsOfController(link)) links.push_back(ToJson(link));
    }
    Json given_up;
    if (status.given_up) {
      given_up = {{"plan", status.given_up->epoch}, {"reason", status.given_up->reason}};
    }
    return {{"model", model_},
            {"term", status.term.value()},
            {"epoch", status.epoch},
            {"missing", OrNull(status.missing)},
            {"degraded", OrNull(status.degraded)},
            {"changing", status.changing},
            {"given_up", given_up},
            {"workers", workers},
            {"still", still},
            {"pipelines", pipelines},
            {"stages", stages},
            {"edges", edges},
            {"links", links},
            {"requests", status.requests},
            {"waiting", status.waiting},
            {"moving", status.moving},
            {"waiting_for",
             {{"prefill", status.waiting_for.prefill},
              {"decode", status.waiting_for.decode},
              {"transfer", status.waiting_for.transfer}}},
            {"cross_class_replay", status.cross_class_replay},
            {"server", ToJson(status.server)},
            {"counters", ToJson(status.counters)}};
  }
  Json Machines() override {
    const cluster::ClusterStatus status = host_.Describe();
    Json workers = Json::array(), links = Json::array();
    for (const auto& worker : status.workers) workers.push_back(MachineJson(worker));
    for (const auto& link : status.links) links.push_back(ToJson(link));
    return {{"workers", workers}, {"links", links}, {"server", ToJson(status.server)}};
  }
  Result<int64_t> ApplyPlan(Plan plan, std::vector<std::string> workers,
                            const std::string& text) override {
    const MutexLock lock(applying_);  // a plan is written before it is settled
    int64_t epoch = 0;
    MR_RETURN_IF_ERROR(host_.ApplyPlan(std::move(plan), std::move(workers), &epoch));
    if (!kept_) return epoch;
    MR_RETURN_IF_ERROR(kept_->Write(text, epoch)
                           .WithContext("the change to the plan has begun, but the next controller "
                                        "will not know of it"));
    return epoch;
  }
  Status Drain(std::string_view worker) override { return host_.DrainWorker(worker); }
  Status Migrate(RequestId request, std::string_view worker) override {
    return host_.Migrate(request, worker);
  }

  std::vector<serve::ClusterMetric> Metrics() override { return ClusterMetrics(host_.Describe()); }

 private:
  void Settle(int64_t epoch, bool in_force) {
    const MutexLock lock(applying_);
    if (const Status settled = kept_->Settle(epoch, in_force); !settled.ok()) {
      MR_LOG(error, "the next controller may start with the plan that was given up: {}",
             settled.message());
    }
  }

  cluster::ControllerHost& host_;
  const std::string model_;
  const std::unique_ptr<ops::KeptPlan> kept_;
  Mutex applying_;
  Mailbox settling_;  // last: its work uses the other members
};

}  // namespace

std::unique_ptr<serve::ClusterAdmin> NewControllerAdmin(cluster::ControllerHost& host,
                                                        std::string model,
                                                        std::unique_ptr<ops::KeptPlan> kept) {
  return std::make_unique<ControllerAdmin>(host, std::move(model), std::move(kept));
}

}  // namespace millrace::apps
