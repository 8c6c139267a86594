// How workers answer the controller's messages.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tests/scenarios/cluster/simulated_cluster.h"

namespace millrace::cluster {
namespace {

constexpr int64_t kBytesPerTokenLayer = 8;

bool IsTest(const SendToWorker& send) {
  const auto* step = std::get_if<PipelineStep>(&send.message);
  return step != nullptr && step->plan->IsTest();
}

}  // namespace

SimulatedCluster::Worker* SimulatedCluster::ByConnection(ConnectionId connection) {
  for (auto& [name, worker] : workers_) {
    if (worker.connection == connection && worker.connected) return &worker;
  }
  return nullptr;
}

SimulatedCluster::Worker* SimulatedCluster::ByAddress(const WorkerAddress& address) {
  for (auto& [name, worker] : workers_) {
    if (worker.incarnation == address.incarnation.value() && worker.connected) return &worker;
  }
  return nullptr;
}

// Prints the controller's actions, without test steps, and lets the workers act on them. One line
// for all workers that get the same message one after the other.
void SimulatedCluster::Take(const std::vector<ControllerAction>& actions) {
  std::vector<std::string> to;
  std::string message;
  const auto say = [&] {
    if (!to.empty()) Say(fmt::format("{} <- {}", fmt::join(to, " "), message));
    to.clear();
  };
  std::vector<Worker*> disconnected;
  for (const ControllerAction& action : actions) {
    if (const auto* send = std::get_if<SendToWorker>(&action)) {
      if (IsTest(*send)) continue;
      const Worker* worker = ByConnection(send->to);
      const std::string name = worker != nullptr ? worker->name : "a worker that is gone";
      std::string text = text_.Line(send->message);
      if (text != message || std::ranges::find(to, name) != to.end()) say();
      message = std::move(text);
      to.push_back(name);
    } else {
      say();
      const auto& disconnect = std::get<Disconnect>(action);
      Worker* worker = ByConnection(disconnect.connection);
      if (worker == nullptr) continue;
      Say(fmt::format("{} is disconnected: {}", worker->name, disconnect.reason));
      EndSession(*worker);
    }
  }
  say();
  for (const ControllerAction& action : actions) {
    const auto* send = std::get_if<SendToWorker>(&action);
    Worker* worker = send == nullptr ? nullptr : ByConnection(send->to);
    if (worker != nullptr) {
      std::visit([&](const auto& m) { Do(*worker, m); }, send->message);
    }
  }
}

void SimulatedCluster::HoldBack(Worker& worker, Answers what, std::function<void()> answer) {
  if (what == Answers::kSteps && !worker.held_since) worker.held_since = now_;
  worker.held_back.emplace_back(what, std::move(answer));
}

void SimulatedCluster::Answer(Worker& worker, Answers what, Duration after,
                              std::function<void()> answer) {
  const ConnectionId session = worker.connection;
  events_.emplace(now_ + after, [this, &worker, what, session, answer = std::move(answer)] {
    if (!worker.connected || worker.connection != session) return;
    if (worker.holds.contains(what)) return HoldBack(worker, what, answer);
    answer();
  });
}

void SimulatedCluster::Do(Worker& worker, const LoadShard& message) {
  const HeldShard wanted{message.layers, message.rank};
  const auto same = [&](const HeldShard& held) {
    return held.layers == wanted.layers && held.rank == wanted.rank;
  };
  const bool held = std::ranges::any_of(worker.kept, same) ||
                    std::ranges::any_of(worker.loaded, [&](ShardId shard) {
                      return same(worker.shards.at(shard));
                    });
  worker.shards[message.shard] = wanted;
  Answer(worker, Answers::kLoads, held ? times_.load_again : times_.load,
         [this, &worker, shard = message.shard] { EndLoad(worker, shard); });
}

void SimulatedCluster::EndLoad(Worker& worker, ShardId shard) {
  const auto found = worker.shards.find(shard);
  if (found == worker.shards.end()) return;  // it is no longer wanted
  const auto [layers, rank] = found->second;
  ShardLoaded loaded{.shard = shard};
  loaded.kv_bytes_per_token_layer = kBytesPerTokenLayer;
  loaded.kv_bytes = worker.facts.kv_tokens * layers.size() * kBytesPerTokenLayer;
  const auto fails = worker.fails.find(Answers::kLoads);
  if (fails == worker.fails.end()) {
    worker.loaded.insert(shard);
    Say(fmt::format("{} -> loaded {}", worker.name, ShardText(layers, rank)));
  } else {
    worker.shards.erase(found);
    loaded.status = ResourceExhausted(fails->second);
    Say(fmt::format("{} -> cannot load {}: {}", worker.name, ShardText(layers, rank),
                    fails->second));
  }
  controller_->Receive(worker.connection, std::move(loaded), now_);
}

void SimulatedCluster::Do(Worker& worker, const UnloadShard& message) {
  worker.shards.erase(message.shard);
  worker.loaded.erase(message.shard);
}

void SimulatedCluster::Do(Worker& worker, const OpenPipeline& message) {
  hops_[message.pipeline] = message.hops;
  worker.pipelines.insert(message.pipeline);
  Answer(worker, Answers::kOpens, times_.open, [this, &worker, id = message.pipeline] {
    PipelineOpened opened{id, {}};
    if (const auto fails = worker.fails.find(Answers::kOpens); fails != worker.fails.end()) {
      opened.status = ResourceExhausted(fails->second);
      Say(fmt::format("{} -> cannot open {}: {}", worker.name, text_.Name(id), fails->second));
    }
    controller_->Receive(worker.connection, std::move(opened), now_);
  });
}

void SimulatedCluster::Do(Worker& worker, const ClosePipeline& message) {
  worker.pipelines.erase(message.pipeline);
}

// Every hop runs its steps one after the other. All ranks of the first hop get the step; the first
// of them acts.
void SimulatedCluster::Do(Worker& worker, const PipelineStep& message) {
  const std::vector<PipelineHop>& hops = hops_.at(message.pipeline);
  if (ByAddress(hops.front().ranks.front()) != &worker) return;
  if (message.plan->IsTest()) {  // it takes no time
    const Worker* last = ByAddress(hops.back().ranks.front());
    if (last == nullptr) return;
    events_.emplace(now_, [this, session = last->connection, pipeline = message.pipeline] {
      controller_->Receive(session, StepDone{pipeline, {.id = kTestStep}}, now_);
    });
    return;
  }
  Time end = now_;
  for (const PipelineHop& hop : hops) {
    Worker* first_rank = ByAddress(hop.ranks.front());
    if (first_rank == nullptr) return;
    end = std::max(end, first_rank->busy_until) + times_.step;
    first_rank->busy_until = end;
  }
  events_.emplace(end, [this, message] { EndStep(message); });
}

void SimulatedCluster::EndStep(const PipelineStep& step) {
  const std::vector<PipelineHop>& hops = hops_.at(step.pipeline);
  std::vector<Worker*> ranks;
  for (const PipelineHop& hop : hops) {
    for (const WorkerAddress& rank : hop.ranks) ranks.push_back(ByAddress(rank));
  }
  for (Worker* rank : ranks) {
    if (rank == nullptr || !rank->pipelines.contains(step.pipeline)) return;  // it never ends
  }
  for (Worker* rank : ranks) {
    if (rank->holds.contains(Answers::kSteps)) {
      return HoldBack(*rank, Answers::kSteps, [this, step] { EndStep(step); });
    }
    if (const auto fails = rank->fails.find(Answers::kSteps); fails != rank->fails.end()) {
      Say(fmt::format("{} -> {} is broken: {}", rank->name, text_.Name(step.pipeline),
                      fails->second));
      PipelineBroken broken{step.pipeline, Internal(fails->second), {}};
      return controller_->Receive(rank->connection, std::move(broken), now_);
    }
  }
  for (Worker* rank : ranks) ++rank->steps_done;
  StepResult result{.id = step.plan->id};
  for (const SequenceStep& s : step.plan->sequences) {
    SequenceResult& sequence = result.sequences.emplace_back();
    sequence.id = s.id;
    if (s.logits != LogitsWanted::kNone) sequence.token = s.start + s.num_tokens;
  }
  const Worker* last = ByAddress(hops.back().ranks.front());
  controller_->Receive(last->connection, StepDone{step.pipeline, std::move(result)}, now_);
}

void SimulatedCluster::Do(Worker& worker, const ExportKv& message) {
  worker.exported.insert(message.handle.generation);
}

void SimulatedCluster::Do(Worker& worker, const ReleaseKv& message) {
  worker.exported.erase(message.handle.generation);
}

void SimulatedCluster::Do(Worker& worker, const PullKv& message) {
  Answer(worker, Answers::kPulls, times_.pull,
         [this, &worker, message] { EndPull(worker, message); });
}

Status SimulatedCluster::PullStatus(Worker& worker, const PullKv& pull) {
  if (const auto fails = worker.fails.find(Answers::kPulls); fails != worker.fails.end()) {
    return Unavailable(fails->second);
  }
  for (const KvSource& source : pull.sources) {
    const Worker* from = ByAddress(source.from);
    if (from == nullptr) return Unavailable("the connection to the source has ended");
    if (!from->exported.contains(source.handle.generation) ||
        !from->pipelines.contains(source.handle.pipeline)) {
      return NotFound(fmt::format("{} does not export this KV", from->name));
    }
  }
  return OkStatus();
}

void SimulatedCluster::EndPull(Worker& worker, const PullKv& pull) {
  if (!worker.pipelines.contains(pull.pipeline)) return;  // it ended with the pipeline
  PullDone done{.transfer = pull.transfer, .status = PullStatus(worker, pull)};
  done.activations = done.status.ok() && pull.activations != PulledActivations::kNone;
  const std::string name = text_.Name(pull.transfer);
  Say(done.status.ok()
          ? fmt::format("{} -> pulled {}", worker.name, name)
          : fmt::format("{} -> {} has failed: {}", worker.name, name, done.status.message()));
  controller_->Receive(worker.connection, std::move(done), now_);
}

// The worker ends its process. If its notice was withdrawn in the meantime, it joins again.
void SimulatedCluster::Do(Worker& worker, const Leave& message) {
  const ConnectionId session = worker.connection;
  events_.emplace(now_ + times_.open, [this, &worker, session, on_notice = message.on_notice] {
    if (!worker.connected || worker.connection != session) return;
    const bool stays = on_notice && !worker.leaving;
    Say(fmt::format("{} {}", worker.name, stays ? "joins again" : "has left"));
    EndSession(worker);
    controller_->ConnectionLost(session, Unavailable("it has left"), now_);
    if (stays) StartSession(worker);
  });
}

}  // namespace millrace::cluster
