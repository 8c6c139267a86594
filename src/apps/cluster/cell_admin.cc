#include "apps/cluster/cell_admin.h"

#include <utility>

#include "plan/io/plan_yaml.h"

namespace millrace::apps {
namespace {

Json RangesOf(const std::vector<LayerRange>& layers) {
  Json all = Json::array();
  for (const LayerRange& range : layers) all.push_back({range.begin, range.end});
  return all;
}

std::string StateOf(const cluster::WorkerStatus& worker) {
  if (!worker.note.empty()) return "unusable";
  if (worker.draining) return "draining";
  return worker.layers.empty() ? "idle" : "serving";
}

Json ToJson(const cluster::WorkerStatus& worker) {
  return {{"name", worker.name},
          {"state", StateOf(worker)},
          {"address", worker.control},
          {"device", worker.device},
          {"note", worker.note},
          {"layers", RangesOf(worker.layers)},
          {"rank", worker.rank},
          {"ranks", worker.ranks},
          {"memory_bytes", worker.memory_bytes},
          {"weight_bytes", worker.weight_bytes},
          {"kv_bytes", worker.kv_bytes},
          {"batches", worker.batches},
          {"silent_s", worker.silent.seconds()}};
}

Json ToJson(const cluster::LaneStatus& lane) {
  const char* state = lane.retiring ? "retiring" : lane.open ? "open" : "opening";
  return {{"id", lane.id.value()},
          {"state", state},
          {"role", plan::RoleName(lane.role)},
          {"workers", lane.workers},
          {"layers", RangesOf(lane.layers)},
          {"requests", lane.requests},
          {"blocks_total", lane.blocks_total},
          {"blocks_used", lane.blocks_used}};
}

Json ToJson(const cluster::ControllerCounters& c) {
  return {{"joins", c.joins},
          {"joins_refused", c.joins_refused},
          {"workers_lost", c.workers_lost},
          {"lanes_opened", c.lanes_opened},
          {"lanes_lost", c.lanes_lost},
          {"layouts", c.layouts},
          {"replays", c.replays},
          {"fetched", c.fetched},
          {"computed_in_part", c.computed_in_part},
          {"poisoned", c.poisoned},
          {"expired", c.expired},
          {"moves", c.moves},
          {"moves_failed", c.moves_failed},
          {"moved_bytes", c.moved_bytes},
          {"stale_messages", c.stale_messages}};
}

class CellAdmin : public serve::ClusterAdmin {
 public:
  CellAdmin(cluster::Cell& cell, std::string model, std::unique_ptr<KeptPlan> kept)
      : cell_(cell), model_(std::move(model)), kept_(std::move(kept)) {}

  Json Describe() override {
    const cluster::ClusterStatus status = cell_.Describe();
    Json workers = Json::array(), lanes = Json::array();
    for (const auto& worker : status.workers) workers.push_back(ToJson(worker));
    for (const auto& lane : status.lanes) lanes.push_back(ToJson(lane));
    Json missing;
    if (status.missing) missing = *status.missing;
    return {{"model", model_},
            {"term", status.term.value()},
            {"epoch", status.epoch},
            {"missing", missing},
            {"changing", status.changing},
            {"workers", workers},
            {"lanes", lanes},
            {"requests", status.requests},
            {"waiting", status.waiting},
            {"moving", status.moving},
            {"counters", ToJson(status.counters)}};
  }
  Status ApplyPlan(Plan plan, std::vector<std::string> workers, const std::string& text) override {
    MR_RETURN_IF_ERROR(cell_.ApplyPlan(std::move(plan), std::move(workers)));
    if (!kept_) return OkStatus();
    return kept_->Write(text).WithContext(
        "the change to the plan has begun, but the next controller will not know of it");
  }
  Status Drain(std::string_view worker) override { return cell_.DrainWorker(worker); }
  Status Migrate(RequestId request, std::string_view worker) override {
    return cell_.Migrate(request, worker);
  }

 private:
  cluster::Cell& cell_;
  const std::string model_;
  const std::unique_ptr<KeptPlan> kept_;
};

}  // namespace

std::unique_ptr<serve::ClusterAdmin> NewCellAdmin(cluster::Cell& cell, std::string model,
                                                  std::unique_ptr<KeptPlan> kept) {
  return std::make_unique<CellAdmin>(cell, std::move(model), std::move(kept));
}

}  // namespace millrace::apps
