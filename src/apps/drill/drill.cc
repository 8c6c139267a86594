#include "apps/drill/drill.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "apps/cluster/json_fields.h"
#include "apps/drill/drill_cluster.h"
#include "apps/drill/drill_memory.h"
#include "apps/drill/stream_clients.h"
#include "apps/plan/inputs.h"
#include "base/host_memory.h"
#include "model/model_path.h"

namespace millrace::apps {
namespace {

constexpr Duration kPoll = Duration::Millis(50);
constexpr Duration kStartLimit = Duration::Seconds(120);   // a process loads the model
constexpr Duration kSettleLimit = Duration::Seconds(120);  // the cluster is whole again
constexpr Duration kGrace = Duration::Seconds(20);         // of a notice
constexpr Duration kBetween = Duration::Seconds(1.5);      // streams run undisturbed
constexpr char kRecomputedMetric[] = "vllm:prompt_tokens_recomputed_total";

// A status in which nothing is under way: all workers have joined, none must leave, and requests
// are served.
bool IsWhole(const Json& status, int workers) {
  const auto missing = status.find("missing");
  const std::vector<Json> all = ObjectsField(status, "workers");
  return missing != status.end() && missing->is_null() && !FlagField(status, "changing") &&
         std::ssize(all) == workers && std::ranges::all_of(all, [](const Json& worker) {
           const std::string state = TextField(worker, "state");
           return (state == "serving" || state == "idle") &&
                  (!worker.contains("notice") || worker["notice"].is_null());
         });
}

std::optional<Json> WorkerIn(const Json& status, const std::string& name) {
  for (Json& worker : ObjectsField(status, "workers")) {
    if (TextField(worker, "name") == name) return std::move(worker);
  }
  return std::nullopt;
}

int64_t Counted(const Json& status, const char* counter) {
  const auto counters = status.find("counters");
  return counters == status.end() ? 0 : IntegerField(*counters, counter);
}

class Drill {
 public:
  Drill(const DrillOptions& options, const std::atomic<bool>& interrupted,
        const std::function<void(double, const std::string&)>& say)
      : options_(options), interrupted_(interrupted), say_(say), began_(clock_.Now()) {}

  Result<DrillReport> Run();

 private:
  double Now() const { return (clock_.Now() - began_).seconds(); }
  void Say(const std::string& text) const { say_(Now(), text); }
  // Polls until `done`; an error of `done` ends it.
  Status Until(const std::string& what, Duration limit, const std::function<Result<bool>()>& done);
  // The same for the cluster's status; the last one is left in status_.
  Status UntilStatus(const std::string& what, Duration limit,
                     const std::function<bool(const Json&)>& wanted);
  Status Rest(Duration time);
  Status MakeSteps();
  Status AskUndisturbed();
  Status StartCluster();
  Status Disturb(DrillStepKind kind);
  Status Notice();
  Status Withdrawn();
  Status KillWorker();
  Status KillController();
  Status UntilWhole();
  // A worker that has layers and computes.
  Result<std::string> Victim();
  // Waits for a moment at which a stream runs.
  Status BeginStep(std::string_view name);
  // The cluster is whole again.
  void EndStep() { steps_.back().ended_s = Now(); }
  // Once requests had a moment to continue.
  void CountStep(bool new_controller);

  const DrillOptions& options_;
  const std::atomic<bool>& interrupted_;
  const std::function<void(double, const std::string&)>& say_;
  const SteadyClock clock_;
  const Time began_;

  DrillClusterOptions cluster_options_;
  std::vector<DrillRequest> requests_;
  std::vector<std::string> expected_;
  std::vector<DrillStep> steps_;
  Json status_;            // the last one
  Json before_;            // at the beginning of the step
  double recomputed_ = 0;  // then
  std::string last_victim_;
  // Destroyed in reverse: clients, then processes, then their folder.
  std::unique_ptr<PrivateFolder> folder_;
  std::unique_ptr<ProcessLog> log_;
  std::unique_ptr<net::HttpClient> http_;
  std::unique_ptr<DrillCluster> cluster_;
  std::unique_ptr<StreamClients> clients_;
};

Status Drill::Until(const std::string& what, Duration limit,
                    const std::function<Result<bool>()>& done) {
  const Time end = clock_.Now() + limit;
  while (true) {
    if (interrupted_) return Cancelled("interrupted; all processes have been stopped");
    MR_ASSIGN_OR_RETURN(const bool is_done, done());
    if (is_done) return OkStatus();
    if (clock_.Now() > end) {
      return {StatusCode::kDeadlineExceeded,
              fmt::format("{} did not happen within {:.0f} s; --keep leaves the log of all "
                          "processes",
                          what, limit.seconds())};
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPoll.ns));
  }
}

Status Drill::UntilStatus(const std::string& what, Duration limit,
                          const std::function<bool(const Json&)>& wanted) {
  return Until(what, limit, [&]() -> Result<bool> {
    if (const auto dead = cluster_->Dead()) return Unavailable(*dead + " and does not start again");
    auto status = cluster_->Describe();
    if (!status.ok()) return false;  // the controller is on its way
    status_ = std::move(*status);
    return wanted(status_);
  });
}

Status Drill::Rest(Duration time) {
  const Time end = clock_.Now() + time;
  return Until("the pause", time + time, [&]() -> Result<bool> { return clock_.Now() >= end; });
}

Status Drill::UntilWhole() {
  return UntilStatus("a whole cluster", kSettleLimit,
                     [this](const Json& status) { return IsWhole(status, options_.workers); });
}

Status Drill::AskUndisturbed() {
  MR_ASSIGN_OR_RETURN(const auto server, LoneServer::Start(cluster_options_, *log_));
  const auto ready = [&]() -> Result<bool> {
    if (server->failed()) return Unavailable("the undisturbed process ended");
    net::HttpCall call;
    call.url = server->url().Join("/ready");
    const auto response = http_->Call(std::move(call));
    return response.ok() && response->status == 200;
  };
  MR_RETURN_IF_ERROR(Until("the start of the undisturbed process", kStartLimit, ready));
  StreamClients clients(*http_, {.server = server->url(), .rounds = 1}, requests_, clock_, began_);
  clients.Start();
  MR_RETURN_IF_ERROR(Until("the undisturbed answers", kSettleLimit, [&]() -> Result<bool> {
    if (server->failed()) return Unavailable("the undisturbed process ended");
    return clients.answers() == std::ssize(requests_);
  }));
  expected_.resize(requests_.size());
  for (DrillAnswer& answer : clients.Wait()) {
    if (!answer.error.empty()) {
      return Unavailable("the undisturbed process does not answer: " + answer.error);
    }
    expected_[answer.request] = std::move(answer.text);
  }
  const auto greedy = std::ranges::count_if(requests_, &DrillRequest::greedy);
  Say(fmt::format("one undisturbed process has answered {} requests, {} greedy and {} seeded",
                  requests_.size(), greedy, std::ssize(requests_) - greedy));
  return OkStatus();
}

Status Drill::StartCluster() {
  MR_ASSIGN_OR_RETURN(cluster_, DrillCluster::Start(cluster_options_, *folder_, *log_));
  Say(
      fmt::format("a controller and {} workers start; look at them with: millrace status "
                  "--base-url http://{}",
                  options_.workers, cluster_->url().HostHeader()));
  MR_RETURN_IF_ERROR(UntilWhole());
  clients_ = std::make_unique<StreamClients>(*http_, StreamClientOptions{.server = cluster_->url()},
                                             requests_, clock_, began_);
  clients_->Start();
  MR_RETURN_IF_ERROR(Until("a token for every stream", kSettleLimit, [&]() -> Result<bool> {
    return clients_->running() == options_.streams;
  }));
  Say(fmt::format("{} streams run, each asks again when its answer is whole", options_.streams));
  return Rest(kBetween);
}

Result<std::string> Drill::Victim() {
  MR_ASSIGN_OR_RETURN(status_, cluster_->Describe());
  std::string found;
  for (const Json& pipeline : ObjectsField(status_, "pipelines")) {
    if (TextField(pipeline, "state") != "open" || !pipeline.contains("workers")) continue;
    for (const Json& name : pipeline["workers"]) {
      if (!name.is_string()) continue;
      if (found.empty() || found == last_victim_) found = name.get<std::string>();
    }
  }
  if (found.empty()) return Unavailable("no worker serves");
  last_victim_ = found;
  return found;
}

Status Drill::BeginStep(std::string_view name) {
  before_ = status_;
  recomputed_ = CounterIn(cluster_->Metrics(), kRecomputedMetric);
  int streams = 0;  // all of them may be between two answers
  MR_RETURN_IF_ERROR(Until("a stream", kSettleLimit, [&]() -> Result<bool> {
    streams = clients_->running();
    return streams > 0;
  }));
  steps_.push_back({.name = std::string(name), .began_s = Now(), .streams = streams});
  return OkStatus();
}

void Drill::CountStep(bool new_controller) {
  DrillStep& step = steps_.back();
  if (auto status = cluster_->Describe(); status.ok()) status_ = std::move(*status);
  const auto grown = [&](const char* counter) {  // a new controller counts from zero
    return Counted(status_, counter) - (new_controller ? 0 : Counted(before_, counter));
  };
  step.finished = grown("drained_finished");
  step.moves = grown("moves");
  step.moved_bytes = grown("moved_bytes");
  step.replays = grown("replays");
  const double recomputed = CounterIn(cluster_->Metrics(), kRecomputedMetric);
  step.recomputed_tokens = static_cast<int64_t>(recomputed - (new_controller ? 0 : recomputed_));
}

Status Drill::Notice() {
  MR_ASSIGN_OR_RETURN(const std::string worker, Victim());
  MR_RETURN_IF_ERROR(BeginStep("notice"));
  const double given_s = Now();
  MR_RETURN_IF_ERROR(cluster_->GiveNotice(worker, kGrace));
  Say(fmt::format("{} gets a notice: its machine goes away in {:.0f} s", worker, kGrace.seconds()));
  MR_RETURN_IF_ERROR(UntilStatus("the leave of " + worker, kGrace, [&](const Json& status) {
    return !WorkerIn(status, worker).has_value();
  }));
  Say(fmt::format("{} has no request any more and has left, {:.1f} s before its end", worker,
                  kGrace.seconds() - (Now() - given_s)));
  cluster_->Kill(worker);
  cluster_->WithdrawNotice(worker);  // its replacement is another machine
  Say("the machine is taken away; another one starts");
  MR_RETURN_IF_ERROR(UntilWhole());
  EndStep();
  Say(fmt::format("the replacement has joined; {} workers", options_.workers));
  return OkStatus();
}

Status Drill::Withdrawn() {
  MR_ASSIGN_OR_RETURN(const std::string worker, Victim());
  MR_RETURN_IF_ERROR(BeginStep("withdrawn"));
  MR_RETURN_IF_ERROR(cluster_->GiveNotice(worker, kGrace));
  Say(fmt::format("{} gets a notice, which is withdrawn as soon as the controller knows of it",
                  worker));
  MR_RETURN_IF_ERROR(UntilStatus("the notice of " + worker, kGrace, [&](const Json& status) {
    const auto found = WorkerIn(status, worker);
    return !found || (found->contains("notice") && (*found)["notice"].is_object());
  }));
  cluster_->WithdrawNotice(worker);
  MR_RETURN_IF_ERROR(UntilWhole());
  EndStep();
  Say(Counted(status_, "joins") > Counted(before_, "joins")
          ? worker + " had left already, and has joined again"
          : worker + " stays");
  return OkStatus();
}

Status Drill::KillWorker() {
  MR_ASSIGN_OR_RETURN(const std::string worker, Victim());
  MR_RETURN_IF_ERROR(BeginStep("kill"));
  if (!cluster_->Kill(worker)) return Unavailable(worker + " does not run");
  Say(fmt::format("{} is killed (SIGKILL); another one starts", worker));
  MR_RETURN_IF_ERROR(UntilStatus("the loss of " + worker, kSettleLimit, [&](const Json& status) {
    return Counted(status, "workers_lost") > Counted(before_, "workers_lost");
  }));
  Say("the controller has missed it; its requests continue from the tokens that they have");
  MR_RETURN_IF_ERROR(UntilWhole());
  EndStep();
  Say(fmt::format("the replacement has joined; {} workers", options_.workers));
  return OkStatus();
}

Status Drill::KillController() {
  MR_ASSIGN_OR_RETURN(status_, cluster_->Describe());
  MR_RETURN_IF_ERROR(BeginStep("controller"));
  const int64_t term = IntegerField(status_, "term");
  if (!cluster_->KillController()) return Unavailable("the controller does not run");
  Say("the controller is killed (SIGKILL); another one starts, and clients resume their streams");
  MR_RETURN_IF_ERROR(UntilStatus("the next controller", kSettleLimit, [&](const Json& status) {
    return IntegerField(status, "term") > term;
  }));
  MR_RETURN_IF_ERROR(UntilWhole());
  EndStep();
  Say("the workers have joined it with the weights that they had");
  return OkStatus();
}

Status Drill::Disturb(DrillStepKind kind) {
  switch (kind) {
    case DrillStepKind::kNotice: MR_RETURN_IF_ERROR(Notice()); break;
    case DrillStepKind::kWithdrawn: MR_RETURN_IF_ERROR(Withdrawn()); break;
    case DrillStepKind::kKill: MR_RETURN_IF_ERROR(KillWorker()); break;
    case DrillStepKind::kController: MR_RETURN_IF_ERROR(KillController()); break;
  }
  MR_RETURN_IF_ERROR(Rest(kBetween));
  CountStep(kind == DrillStepKind::kController);
  return OkStatus();
}

Result<DrillReport> Drill::Run() {
  MR_ASSIGN_OR_RETURN(const model::ModelPath path, model::FindModel(options_.model));
  MR_ASSIGN_OR_RETURN(const plan::ModelFootprint footprint, LoadFootprint(path.folder));
  MR_ASSIGN_OR_RETURN(const int64_t kv_bytes,
                      CheckDrillFits(options_, footprint, ReadMemoryAvailable()));
  cluster_options_ = {.model = path.folder,
                      .workers = options_.workers,
                      .port = options_.port,
                      .max_model_len = options_.tokens + kDrillPromptTokensMax,
                      .max_num_seqs = options_.streams,
                      .kv_bytes = kv_bytes};
  requests_ = DrillRequests(options_.streams, options_.tokens);
  MR_ASSIGN_OR_RETURN(folder_, PrivateFolder::Make());
  if (options_.keep) folder_->Keep();
  log_ = std::make_unique<ProcessLog>(folder_->path() + "/drill.log", clock_);
  MR_ASSIGN_OR_RETURN(http_, net::HttpClient::Start({}));
  const Status made = MakeSteps();
  if (options_.keep) Say("the log of all processes: " + folder_->path() + "/drill.log");
  if (made.code() == StatusCode::kCancelled) return made;
  if (!made.ok()) {
    Say("the last lines of the processes:\n" + log_->Tail());
    return made;
  }
  return Judge(requests_, expected_, clients_->Wait(), steps_);
}

Status Drill::MakeSteps() {
  MR_RETURN_IF_ERROR(AskUndisturbed());
  MR_RETURN_IF_ERROR(StartCluster());
  for (const DrillStepKind kind : options_.steps) MR_RETURN_IF_ERROR(Disturb(kind));
  clients_->FinishAnswers();
  Say("each stream ends with the answer that it is at");
  return Until("the end of the streams", kSettleLimit,
               [&]() -> Result<bool> { return clients_->idle(); });
}

}  // namespace

const std::vector<DrillStepName>& AllDrillSteps() {
  static const std::vector<DrillStepName> all = {{"notice", DrillStepKind::kNotice},
                                                 {"withdrawn", DrillStepKind::kWithdrawn},
                                                 {"kill", DrillStepKind::kKill},
                                                 {"controller", DrillStepKind::kController}};
  return all;
}

Result<DrillReport> RunDrill(const DrillOptions& options, const std::atomic<bool>& interrupted,
                             const std::function<void(double, const std::string&)>& say) {
  Drill drill(options, interrupted, say);
  return drill.Run();
}

}  // namespace millrace::apps
