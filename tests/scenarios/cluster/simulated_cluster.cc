// The script's events, virtual time, and clients.
#include "tests/scenarios/cluster/simulated_cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace millrace::cluster {
namespace {

constexpr Duration kLongest = Duration::Seconds(60);  // of RunToEnd and RunUntil
constexpr int kPromptStride = 1000;                   // no two prompts share a token
constexpr char kModelFingerprint[] = "model";         // of workers with a numeric class

}  // namespace

Result<std::unique_ptr<SimulatedCluster>> SimulatedCluster::Create(
    ControllerOptions options, WorkerTimes times, std::vector<std::string>& transcript) {
  std::unique_ptr<SimulatedCluster> cluster(new SimulatedCluster(options, times, transcript));
  MR_ASSIGN_OR_RETURN(cluster->controller_, ControllerCore::Create(std::move(options)));
  cluster->next_beat_ = Time{} + cluster->options_.heartbeat_every;
  return cluster;
}

void SimulatedCluster::Say(const std::string& line) {
  transcript_.push_back(fmt::format("{:7.3f}  {}", static_cast<double>(now_.ns) * 1e-9, line));
}

void SimulatedCluster::SayIfRefused(const Status& status) {
  if (!status.ok()) Say(fmt::format("refused: {}", status.message()));
}

// ---- events of workers

SimulatedCluster::Worker* SimulatedCluster::ByName(const std::string& name) {
  const auto found = workers_.find(name);
  if (found != workers_.end() && found->second.connected) return &found->second;
  Say(fmt::format("no worker is connected as {}", name));
  return nullptr;
}

void SimulatedCluster::Join(const std::string& name, const SimulatedWorker& facts) {
  Worker& worker = workers_[name];
  if (worker.connected) return Say(fmt::format("{} has joined already", name));
  worker = Worker{.name = name, .incarnation = ++last_incarnation_, .facts = facts};
  text_.NameWorker(Incarnation(worker.incarnation), name);
  StartSession(worker);
  Settle();
}

void SimulatedCluster::Reconnect(const std::string& name) {
  const auto found = workers_.find(name);
  if (found == workers_.end()) return Say(fmt::format("no worker is named {}", name));
  if (found->second.connected) EndSession(found->second);
  StartSession(found->second);
  Settle();
}

void SimulatedCluster::StartSession(Worker& worker) {
  worker.connection = ConnectionId(++last_connection_);
  worker.connected = true;
  worker.silent = false;
  worker.beats = 0;
  millrace::Join join;
  join.name = worker.facts.announced.empty() ? worker.name : worker.facts.announced;
  if (const std::string& numeric_class = worker.facts.numeric_class; !numeric_class.empty()) {
    join.identity.numeric_class = numeric_class;
    join.identity.model_fingerprint = kModelFingerprint;
    classes_[BitsFingerprint(kModelFingerprint, numeric_class, "")] = numeric_class;
  }
  join.address.incarnation = Incarnation(worker.incarnation);
  join.held = worker.kept;
  controller_->Receive(worker.connection, std::move(join), now_);
}

// Every pipeline ends with the session. The weights stay.
void SimulatedCluster::EndSession(Worker& worker) {
  worker.connected = false;
  for (ShardId shard : worker.loaded) worker.kept.push_back(worker.shards.at(shard));
  worker.shards.clear();
  worker.loaded.clear();
  worker.pipelines.clear();
  worker.exported.clear();
  worker.held_back.clear();
  worker.held_since.reset();
  worker.busy_until = now_;
}

void SimulatedCluster::Lose(const std::string& name, const std::string& reason) {
  Worker* worker = ByName(name);
  if (worker == nullptr) return;
  EndSession(*worker);
  controller_->ConnectionLost(
      worker->connection, Unavailable(reason.empty() ? "the connection has ended" : reason), now_);
  Settle();
}

void SimulatedCluster::Notify(const std::string& name, ToController notice) {
  Worker* worker = ByName(name);
  if (worker == nullptr) return;
  worker->leaving = std::holds_alternative<Leaving>(notice);
  controller_->Receive(worker->connection, std::move(notice), now_);
  Settle();
}

void SimulatedCluster::Silence(const std::string& name, bool silent) {
  if (Worker* worker = ByName(name)) worker->silent = silent;
}

void SimulatedCluster::Hold(const std::string& name, Answers what) {
  if (Worker* worker = ByName(name)) worker->holds.insert(what);
}

void SimulatedCluster::EndHold(const std::string& name, Answers what) {
  Worker* worker = ByName(name);
  if (worker == nullptr) return;
  worker->holds.erase(what);
  if (what == Answers::kSteps) worker->held_since.reset();
  for (auto& [kind, answer] : std::exchange(worker->held_back, {})) {
    if (kind == what) {
      answer();
    } else {
      worker->held_back.emplace_back(kind, std::move(answer));
    }
  }
  Settle();
}

void SimulatedCluster::Fail(const std::string& name, Answers what, const std::string& reason) {
  if (Worker* worker = ByName(name)) worker->fails[what] = reason;
}

void SimulatedCluster::EndFail(const std::string& name, Answers what) {
  if (Worker* worker = ByName(name)) worker->fails.erase(what);
}

void SimulatedCluster::Break(const std::string& pipeline, const std::string& name,
                             const std::string& suspect, const std::string& reason) {
  const std::optional<PipelineId> id = text_.FindPipeline(pipeline);
  const Worker* worker = ByName(name);
  if (!id || worker == nullptr) return Say(fmt::format("no pipeline is named {}", pipeline));
  PipelineBroken broken{*id, Unavailable(reason), {}};
  for (const WorkerStatus& status : controller_->Describe(now_).workers) {
    if (status.name == suspect) broken.suspect = status.id;
  }
  controller_->Receive(worker->connection, std::move(broken), now_);
  Settle();
}

// ---- clients and operators

void SimulatedCluster::Submit(const std::string& name, const SimulatedRequest& request) {
  const RequestId id(clients_.size() + 1);
  const auto first = static_cast<TokenId>(id.value()) * kPromptStride;
  std::vector<TokenId> prompt;
  for (int i = 0; i < request.prompt_tokens; ++i) prompt.push_back(first + i);
  SamplingParams params;
  params.n = request.n;
  params.max_tokens = request.max_tokens;
  Client& client = clients_[id];
  client.name = name;
  client.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
  client.params = std::make_shared<const SamplingParams>(std::move(params));
  client.arrived = now_;
  client.delivered.resize(static_cast<size_t>(request.n));
  text_.NameRequest(first, name, id.value(), request.n);
  SubmitToController(client, {.id = id});
  Settle();
}

void SimulatedCluster::SubmitToController(Client& client, sched::NewRequest request) {
  request.prompt = client.prompt;
  request.params = client.params;
  request.seed = request.id.value();
  const Status submitted = controller_->Submit(std::move(request), now_, client.fingerprint);
  SayIfRefused(submitted);
  if (!submitted.ok()) client.ended = client.delivered.size();
}

SimulatedCluster::Client* SimulatedCluster::FindClient(const std::string& name) {
  for (auto& [id, client] : clients_) {
    if (client.name == name) return &client;
  }
  Say(fmt::format("no request is named {}", name));
  return nullptr;
}

void SimulatedCluster::Abort(const std::string& name) {
  const Client* client = FindClient(name);
  if (client == nullptr) return;
  controller_->Abort(RequestId(client->prompt->front() / kPromptStride), std::nullopt, now_);
  Settle();
}

void SimulatedCluster::Drain(const std::string& name) {
  SayIfRefused(controller_->DrainWorker(name));
  Settle();
}

void SimulatedCluster::Migrate(const std::string& name, const std::string& worker) {
  const Client* client = FindClient(name);
  if (client == nullptr) return;
  const RequestId id(client->prompt->front() / kPromptStride);
  SayIfRefused(controller_->Migrate(id, worker, now_));
  Settle();
}

void SimulatedCluster::ApplyPlan(Plan plan) {
  SayIfRefused(controller_->ApplyPlan(std::move(plan), {}));
  Settle();
}

// As with a journal: the tokens that were delivered, and the requests that have not ended, are
// known to the next controller. It has its own options; an applied plan is not among them.
void SimulatedCluster::TakeOver() {
  options_.term = Term(options_.term.value() + 1);
  Say(fmt::format("a controller of term {} takes over", options_.term.value()));
  controller_ = std::move(ControllerCore::Create(options_)).value();
  for (auto& [id, client] : clients_) {
    if (client.over()) continue;
    sched::NewRequest request{.id = id};
    request.times = RequestTimes{.arrived = client.arrived};
    const bool begun = std::ranges::any_of(
        client.delivered, [](const auto& sequence) { return !sequence.output.empty(); });
    if (begun) {
      request.resumed = client.delivered;
      request.times->first_scheduled = request.times->first_token = client.arrived;
    }
    SubmitToController(client, std::move(request));
  }
  for (auto& [name, worker] : workers_) {
    if (!worker.connected) continue;
    EndSession(worker);
    StartSession(worker);
  }
  Settle();
}

// ---- time

void SimulatedCluster::RunFor(Duration time) {
  const Time end = now_ + time;
  RunEvents(end, [] { return false; });
  now_ = end;
}

void SimulatedCluster::RunToEnd() {
  RunEvents(now_ + kLongest, [this] {
    return std::ranges::all_of(clients_, [](const auto& entry) { return entry.second.over(); });
  });
}

void SimulatedCluster::RunUntil(const std::string& name, size_t tokens) {
  const Client* client = FindClient(name);
  if (client == nullptr) return;
  RunEvents(now_ + kLongest, [client, tokens] {
    return client->delivered.front().output.size() >= tokens || client->over();
  });
}

void SimulatedCluster::RunEvents(Time until, const std::function<bool()>& stop) {
  while (!stop()) {
    const bool event_first = !events_.empty() && events_.begin()->first <= next_beat_;
    const Time next = event_first ? events_.begin()->first : next_beat_;
    if (next > until) return;
    now_ = next;
    if (event_first) {
      auto event = events_.extract(events_.begin());
      event.mapped()();
    } else {
      Beat();
      next_beat_ = next_beat_ + options_.heartbeat_every;
    }
    Settle();
  }
}

void SimulatedCluster::Beat() {
  for (auto& [name, worker] : workers_) {
    if (!worker.connected || worker.silent) continue;
    Heartbeat beat{.incarnation = Incarnation(worker.incarnation), .sequence = ++worker.beats};
    beat.steps_done = worker.steps_done;
    if (worker.held_since) {
      beat.batch_age_ms = static_cast<int64_t>((now_ - *worker.held_since).millis());
    }
    controller_->Beat(worker.connection, beat, now_);
  }
  controller_->Tick(now_);
}

// Prints what the controller does and delivers.
void SimulatedCluster::Settle() {
  controller_->Advance(now_);
  std::vector<RequestOutput> outputs;
  controller_->TakeOutputs(outputs);
  for (const RequestOutput& output : outputs) SayOutput(output);
  std::vector<ControllerAction> actions;
  controller_->TakeActions(actions);
  Take(actions);
  controller_->CheckIntegrity();
}

void SimulatedCluster::SayOutput(const RequestOutput& output) {
  Client& client = clients_.at(output.request);
  sched::ResumedSequence& delivered = client.delivered[static_cast<size_t>(output.index)];
  std::string line = client.name;
  if (client.params->n > 1) line += fmt::format(".{}", output.index);
  if (!output.tokens.empty()) line += " gets";
  if (!output.fingerprint.empty()) {
    client.fingerprint = output.fingerprint;
    line += fmt::format(" from class {}", classes_.at(output.fingerprint));
  }
  for (TokenId token : output.tokens) {
    const auto expected = static_cast<TokenId>(client.prompt->size() + delivered.output.size());
    line += fmt::format(" {}", token);
    if (token != expected) line += fmt::format(" (WRONG, it should be {})", expected);
    delivered.output.push_back(token);
  }
  if (output.finish) {
    line += fmt::format("{} ends: {}", output.tokens.empty() ? "" : " and",
                        FinishReasonName(*output.finish));
    if (!output.error.ok()) line += fmt::format(", {}", output.error.message());
    if (delivered.finished) line += " (WRONG, it has ended before)";
    delivered.finished = true;
    ++client.ended;
  }
  Say(line);
}

// ---- status

void SimulatedCluster::SayStatus() {
  const ClusterStatus status = controller_->Describe(now_);
  Say(fmt::format("plan {}{}; requests {}, waiting {}, moving {}", status.epoch,
                  status.changing ? ", changing" : "", status.requests, status.waiting,
                  status.moving));
  if (status.given_up) {
    Say(fmt::format("  gave up plan {}: {}", status.given_up->epoch, status.given_up->reason));
  }
  if (status.missing) Say("  missing: " + *status.missing);
  if (status.degraded) Say("  degraded: " + *status.degraded);
  for (const WorkerStatus& worker : status.workers) {
    std::string line = fmt::format("  {}:", worker.name);
    for (LayerRange layers : worker.layers) {
      line += " " + ShardText(layers, {worker.rank, worker.ranks});
    }
    if (worker.layers.empty()) line += " no layers";
    if (worker.draining) line += ", draining";
    if (worker.notice) {
      line += fmt::format(", {} ({})", worker.notice->hard ? "leaves" : "may leave",
                          ToText(worker.notice->origin));
    }
    if (worker.notice_left) line += fmt::format(" in {:.1f} s", worker.notice_left->seconds());
    if (!worker.note.empty()) line += ", " + worker.note;
    Say(line);
  }
  const char* roles[] = {"", "prefill ", "decode "};
  for (const PipelineStatus& pipeline : status.pipelines) {
    Say(fmt::format("  {}: {}at {}; requests {}{}{}", text_.Name(pipeline.id),
                    roles[static_cast<int>(pipeline.role)], fmt::join(pipeline.workers, " "),
                    pipeline.requests, pipeline.open ? "" : ", opening",
                    pipeline.retiring ? ", retiring" : ""));
  }
}

void SimulatedCluster::SayCounters() {
  std::vector<std::string> counters;
  for (const ControllerCounter& counter : AllControllerCounters()) {
    const uint64_t value = controller_->counters().*counter.value;
    if (value > 0) counters.push_back(fmt::format("{} {}", counter.name, value));
  }
  Say(fmt::format("{}", fmt::join(counters, ", ")));
}

}  // namespace millrace::cluster
