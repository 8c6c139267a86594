// Computes what moves for a change, and how long machines wait for it.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "experiments/lib/spotserve/simulator.h"

namespace millrace::experiments::spotserve {

using plan::spot::ParallelConfig;

// `batches`: by old pipeline, the requests whose KV it holds (-1: a request with unknown progress).
Simulator::Moving Simulator::MapChange(const ParallelConfig& target,
                                       const std::map<int, std::vector<int>>& batches) const {
  Moving moving;
  moving.nodes = fleet_.Known();
  moving.request.config = target;
  moving.request.bytes = model_.bytes;
  for (const int i : moving.nodes) {
    const Node& node = fleet_.node(i);
    moving.request.instances.push_back(
        Instance{.devices = node.held, .leaving = node.leaves_s.has_value()});
  }
  std::vector<RunningBatch> running;
  for (const auto& [data, requests] : batches) {
    int64_t tokens = 0;
    int steps = 0;
    for (const int r : requests) {
      // The released engine moves the space that it reserved; kMillrace moves the filled part.
      const int done = r >= 0 && KeepsProgress() ? requests_[r].done : lengths_.output_tokens;
      tokens += lengths_.input_tokens + done;
      if (r >= 0) steps = std::max(steps, requests_[r].done);
    }
    if (data >= static_cast<int>(moving.request.kv_tokens.size())) {
      moving.request.kv_tokens.resize(data + 1);
    }
    moving.request.kv_tokens[data] = tokens;
    // A pipeline that continues through the change keeps its place before all others.
    const bool kept = std::any_of(pipelines_.begin(), pipelines_.end(), [&, d = data](auto& p) {
      return p.second.data == d && change_.kept.contains(p.first);
    });
    running.push_back({data, kept ? lengths_.output_tokens + 1 : steps});
  }
  moving.request.inherits = InheritBatches(std::move(running), target.data);
  auto mapping = MapDevices(moving.request);
  MR_CHECK(mapping.ok()) << mapping.status().ToString();
  moving.mapping = std::move(*mapping);
  moving.migration = PlanMigration(moving.request, moving.mapping, cloud_.migration);
  return moving;
}

// Pipelines whose devices all stay at their stage and shard, with their new numbers.
std::map<int64_t, int> Simulator::Untouched(const Moving& moving) const {
  std::map<int64_t, int> untouched;
  if (!config_.has_value() || config_->pipeline != moving.request.config.pipeline ||
      config_->tensor != moving.request.config.tensor) {
    return untouched;
  }
  for (const auto& [id, serving] : pipelines_) {
    std::optional<int> number;
    bool same = true;
    for (size_t i = 0; i < moving.nodes.size() && same; ++i) {
      const auto& held = moving.request.instances[i].devices;
      for (size_t k = 0; k < held.size() && same; ++k) {
        if (!held[k].has_value() || held[k]->position.data != serving.data) continue;
        const auto& place = moving.mapping.positions[i][k];
        same = place.has_value() && place->stage == held[k]->position.stage &&
               place->shard == held[k]->position.shard &&
               place->data == number.value_or(place->data);
        if (same) number = place->data;
      }
    }
    if (same && number.has_value()) untouched[id] = *number;
  }
  return untouched;
}

// The duration of the chosen part of the transfers: KV, weights to devices that serve until then,
// or weights to empty machines that can be filled while others serve.
double Simulator::Seconds(const Moving& moving, bool kv, bool to_used, bool to_empty) const {
  std::map<int, double> between, within;
  for (const Transfer& t : moving.migration.transfers) {
    const bool empty = fleet_.node(moving.nodes[t.to.instance]).empty();
    const bool wanted = t.kind == TransferKind::kKv ? kv : empty ? to_empty : to_used;
    if (!wanted || !t.from.has_value()) continue;
    if (t.from->instance != t.to.instance) {
      between[t.from->instance] += t.bytes;
      between[t.to.instance] += t.bytes;
    } else {
      within[t.to.instance] += t.bytes;
    }
  }
  double most_between = 0, most_within = 0;
  for (const auto& [instance, bytes] : between) most_between = std::max(most_between, bytes);
  for (const auto& [instance, bytes] : within) most_within = std::max(most_within, bytes);
  return most_between / cloud_.migration.between_bytes_per_s +
         most_within / cloud_.migration.within_bytes_per_s +
         (kv || to_used ? cloud_.migration.fixed_s : 0);
}

double Simulator::StorageSeconds(const Moving& moving) const {
  if (now_s_ <= 0 && !config_.has_value())
    return 0;  // the machines at the start of a trace are loaded
  std::map<int, int64_t> bytes;
  int64_t most = 0;
  for (const Transfer& t : moving.migration.transfers) {
    if (t.from.has_value()) continue;
    most = std::max(most, bytes[t.to.instance] += t.bytes);
  }
  return most / cloud_.storage_bytes_per_s;
}

void Simulator::Move() {
  phase_ = Phase::kMoving;
  // Machines may have got a notice while pipelines were stopping.
  const int devices = static_cast<int>(fleet_.Staying().size()) * cloud_.devices_per_instance;
  if (change_.target->devices() > devices) {
    change_.target = Choose(devices);
    if (!change_.target.has_value()) {
      GiveUp();
      return;
    }
  }
  if (options_.system == System::kReparallelization) {
    MoveWithoutKv();
  } else {
    MoveWithKv();
  }
}

// Nothing fits any more: stopped requests wait in the queue for machines.
void Simulator::GiveUp() {
  for (const auto& [data, requests] : change_.batches) Return(requests);
  change_.batches.clear();
  std::erase_if(pipelines_, [](const auto& p) { return p.second.stopped; });
  for (auto& [id, serving] : pipelines_) serving.closing = false;
  phase_ = Phase::kSteady;
  dirty_ = false;
}

void Simulator::MoveWithoutKv() {
  for (const int i : fleet_.Known()) {
    auto& held = fleet_.node(i).held;
    std::fill(held.begin(), held.end(), std::nullopt);
  }
  Moving moving = MapChange(*change_.target, {});
  change_.nodes = std::move(moving.nodes);
  change_.places = std::move(moving.mapping.positions);
  double ready_s = now_s_;
  if (now_s_ > 0 || config_.has_value()) {
    ready_s = std::max(now_s_, change_.await_s) + StorageSeconds(moving) + cloud_.engine_start_s;
  }
  report_.storage_bytes += moving.migration.storage_bytes;
  report_.pause_s += (ready_s - now_s_) * static_cast<double>(pipelines_.size());
  Push(ready_s, EventKind::kReady, change_.number);
}

void Simulator::MoveWithKv() {
  std::erase_if(change_.kept, [&](const auto& k) { return !pipelines_.contains(k.first); });
  if (options_.system == System::kMillrace) ChooseCopies();
  Moving moving;
  for (;;) {
    std::map<int, std::vector<int>> batches = change_.batches;
    for (const auto& [id, serving] : pipelines_) {
      if (change_.kept.contains(id)) {
        batches[serving.data].resize(std::max(1, serving.engine->running()), -1);
      }
    }
    moving = MapChange(*change_.target, batches);
    // Pipelines that were to stay in place must still do so, now that the interrupted requests are
    // known.
    const auto untouched = Untouched(moving);
    bool stable = true;
    for (auto it = change_.kept.begin(); it != change_.kept.end();) {
      const auto still = untouched.find(it->first);
      if (still != untouched.end()) {
        it->second = still->second;
        ++it;
        continue;
      }
      stable = false;
      Serving& serving = pipelines_.at(it->first);
      serving.closing = serving.stopped = true;
      Settle(serving, serving.engine->Cut(now_s_));
      it = change_.kept.erase(it);
    }
    if (stable) break;
  }
  const double begin_s = std::max(now_s_, change_.await_s);
  double ready_s = begin_s + moving.migration.seconds + StorageSeconds(moving);
  if (options_.system == System::kMillrace) {
    ready_s = std::max(begin_s + Seconds(moving, true, true, false), change_.copied_s) +
              StorageSeconds(moving);
  } else if (now_s_ > 0 || config_.has_value()) {
    ready_s += cloud_.engine_start_s;
  }
  if (now_s_ <= 0 && !config_.has_value()) ready_s = now_s_;
  Inherit(moving, begin_s + Seconds(moving, true, false, false));
  report_.moved_bytes += moving.migration.bytes - moving.migration.storage_bytes;
  report_.moved_kv_bytes += moving.migration.kv_bytes;
  report_.storage_bytes += moving.migration.storage_bytes;
  const size_t stopped = pipelines_.size() - change_.kept.size();
  report_.pause_s += (ready_s - now_s_) * static_cast<double>(stopped);
  change_.nodes = std::move(moving.nodes);
  change_.places = std::move(moving.mapping.positions);
  Push(ready_s, EventKind::kReady, change_.number);
}

// Moves interrupted batches to their new pipelines. Batches whose KV does not arrive go back to the
// queue.
void Simulator::Inherit(const Moving& moving, double kv_arrives_s) {
  std::set<int> late;  // new pipelines whose KV source dies before the pull ends
  for (const Transfer& t : moving.migration.transfers) {
    if (t.kind != TransferKind::kKv || !t.prior) continue;
    if (kv_arrives_s > *fleet_.node(moving.nodes[t.from->instance]).leaves_s) {
      late.insert(moving.mapping.positions[t.to.instance][t.to.device]->data);
    }
  }
  for (size_t data = 0; data < moving.request.inherits.size(); ++data) {
    const auto& old = moving.request.inherits[data];
    if (!old.has_value()) continue;
    const auto batch = change_.batches.find(*old);
    if (batch == change_.batches.end()) continue;
    if (moving.migration.kv_lost[data] || late.contains(static_cast<int>(data))) continue;
    change_.inherits[static_cast<int>(data)] = std::move(batch->second);
    change_.batches.erase(batch);
  }
  for (const auto& [data, requests] : change_.batches) Return(requests);
  change_.batches.clear();
}

// kMillrace: decides per request whether copying its KV before the deadline is cheaper than
// recomputing it.
void Simulator::ChooseCopies() {
  std::vector<plan::spot::LiveRequest> live;
  std::vector<std::pair<int, int>> where;  // (old pipeline, request)
  for (const auto& [data, requests] : change_.batches) {
    for (const int r : requests) {
      const int64_t context = lengths_.input_tokens + requests_[r].done;
      const double prefill_s = BatchTime(model_.profile, *config_, 1).prefill_ms / 1000;
      live.push_back(
          {.id = r,
           .finish_s = INFINITY,
           .latest_finish_s = INFINITY,
           .kv_bytes = context * model_.bytes.layers * model_.bytes.kv_bytes_per_token_layer,
           .replay_s = prefill_s * static_cast<double>(context) / lengths_.input_tokens,
           .waiting_s = now_s_ - requests_[r].arrival_s});
      where.push_back({data, r});
    }
  }
  const double grace_s = std::min(change_.deadline_s - now_s_, cloud_.grace_s);
  const auto plan = ChooseRecovery(
      live, {.seconds = grace_s, .bytes_per_s = cloud_.migration.between_bytes_per_s});
  change_.batches.clear();
  std::vector<int> replayed;
  for (size_t i = 0; i < live.size(); ++i) {
    if (plan.choice[i] == plan::spot::Recovery::kReplay) {
      replayed.push_back(where[i].second);
    } else {
      change_.batches[where[i].first].push_back(where[i].second);
    }
  }
  Return(replayed);
}

}  // namespace millrace::experiments::spotserve
