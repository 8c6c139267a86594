// Runs scenario scripts through a real ControllerCore with simulated workers, and compares what it
// does with the text in the file.
//
//   run_cluster_scenarios [--rewrite] FILE...
//
// Commands: README.md. The form of a script: ../script.h.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/scenarios/cluster/plan_text.h"
#include "tests/scenarios/cluster/simulated_cluster.h"
#include "tests/scenarios/script.h"

namespace millrace::cluster {
namespace {

constexpr int kLayers = 4;

std::optional<Answers> AnswersOf(const std::string& word) {
  static const std::map<std::string, Answers> kinds = {{"loads", Answers::kLoads},
                                                       {"opens", Answers::kOpens},
                                                       {"steps", Answers::kSteps},
                                                       {"pulls", Answers::kPulls}};
  const auto found = kinds.find(word);
  return found == kinds.end() ? std::nullopt : std::optional(found->second);
}

std::optional<DispatchPolicy> PolicyOf(const std::string& word) {
  static const std::map<std::string, DispatchPolicy> policies = {
      {"fewest", DispatchPolicy::kFewestRequests},
      {"round-robin", DispatchPolicy::kRoundRobin},
      {"random", DispatchPolicy::kRandom},
      {"predicted", DispatchPolicy::kPredictedTime}};
  const auto found = policies.find(word);
  return found == policies.end() ? std::nullopt : std::optional(found->second);
}

// "2s", "100ms".
std::optional<Duration> DurationOf(const std::string& word) {
  size_t end = 0;
  if (word.empty() || word[0] < '0' || word[0] > '9') return std::nullopt;
  const double value = std::stod(word, &end);
  if (word.substr(end) == "ms") return Duration::Seconds(value / 1000);
  if (word.substr(end) == "s") return Duration::Seconds(value);
  return std::nullopt;
}

class ClusterScenario : public Scenario {
 public:
  ClusterScenario() {
    options_.term = Term(1);
    options_.model = "m";
    options_.num_layers = kLayers;
    options_.scheduler.block_size = 4;
    options_.scheduler.max_model_len = 64;
  }

  std::vector<std::string> Run(const std::string& line) override {
    lines_.clear();
    const Command c = Command::Parse(line);
    const std::string verb = c.Word(0);
    bool known = true;
    if (verb == "options") {
      Options(c);
    } else if (verb == "plan" || verb == "graph") {
      const std::string text = line.substr(verb.size());
      SetPlan(verb == "plan" ? ParseChains(text, kLayers) : ParseGraph(text, kLayers));
    } else if (cluster() != nullptr) {
      known = OfWorkers(verb, c) || OfClients(verb, c) || OfTime(verb, c);
    }
    if (!known) lines_.push_back("unknown command");
    return lines_;
  }

 private:
  // The first command that needs it starts the controller.
  SimulatedCluster* cluster() {
    if (cluster_ != nullptr) return cluster_.get();
    auto created = SimulatedCluster::Create(options_, times_, lines_);
    if (created.ok()) {
      cluster_ = std::move(*created);
    } else {
      lines_.push_back(fmt::format("refused: {}", created.status().message()));
    }
    return cluster_.get();
  }

  void Options(const Command& c) {
    LayoutShape& shape = options_.shape;
    shape.stages = c.Int("stages", shape.stages);
    shape.tensor_parallel = c.Int("tp", shape.tensor_parallel);
    shape.prefill = c.Int("prefill", shape.prefill);
    shape.decode = c.Int("decode", shape.decode);
    shape.replicas = c.Int("replicas", shape.replicas);
    options_.elastic = c.Int("elastic", options_.elastic ? 1 : 0) == 1;
    options_.cross_class_replay =
        c.Int("cross_class_replay", options_.cross_class_replay ? 1 : 0) == 1;
    options_.deaths_max = c.Int("deaths_max", options_.deaths_max);
    options_.waiting_max = c.Int("waiting_max", options_.waiting_max);
    options_.scheduler.num_blocks = c.Int("blocks", options_.scheduler.num_blocks);
    options_.scheduler.max_model_len = c.Int("max_len", options_.scheduler.max_model_len);
    options_.scheduler.max_num_batched_tokens =
        c.Int("max_tokens", options_.scheduler.max_num_batched_tokens);
    if (const auto policy = PolicyOf(c.Text("dispatch"))) {
      options_.dispatch = DispatchOptions{.policy = *policy};
    }
    const auto set = [&](const char* name, Duration& duration) {
      duration = DurationOf(c.Text(name)).value_or(duration);
    };
    set("waiting", options_.waiting_limit);
    set("hold", options_.hold_limit);
    set("replace", options_.replace_limit);
    set("load", times_.load);
    set("step", times_.step);
    set("pull", times_.pull);
  }

  void SetPlan(Result<Plan> plan) {
    if (!plan.ok()) {
      lines_.push_back(fmt::format("refused: {}", plan.status().message()));
    } else if (cluster_ != nullptr) {
      cluster_->ApplyPlan(std::move(*plan));
    } else {
      options_.plan = std::move(*plan);
    }
  }

  bool OfWorkers(const std::string& verb, const Command& c) {
    SimulatedCluster& cluster = *cluster_;
    const std::string worker = c.Word(1);
    const std::optional<Answers> what = AnswersOf(c.Word(2));
    if (verb == "join") {
      for (size_t i = 1; i < c.words.size(); ++i) {
        SimulatedWorker facts{.announced = c.Text("as"), .numeric_class = c.Text("class")};
        facts.kv_tokens = c.Int("kv", static_cast<int>(facts.kv_tokens));
        cluster.Join(c.Word(i), facts);
      }
    } else if (verb == "reconnect") {
      cluster.Reconnect(worker);
    } else if (verb == "lose") {
      cluster.Lose(worker, c.Rest(2));
    } else if (verb == "leaving") {
      const bool stopped = c.Text("from").empty();
      const NoticeOrigin taken_back{NoticeSource::kAws, NoticeKind::kTerminate};
      cluster.Notify(worker,
                     Leaving{DurationOf(c.Text("in")), stopped ? NoticeOrigin() : taken_back});
    } else if (verb == "may_leave") {
      cluster.Notify(worker, MayLeave{{}, {NoticeSource::kAws, NoticeKind::kRebalance}});
    } else if (verb == "staying") {
      cluster.Notify(worker, Staying{});
    } else if (verb == "silence") {
      cluster.Silence(worker, true);
    } else if (verb == "hold" && what) {
      cluster.Hold(worker, *what);
    } else if (verb == "unhold" && what) {
      cluster.EndHold(worker, *what);
    } else if (verb == "fail" && what) {
      cluster.Fail(worker, *what, c.Rest(3));
    } else if (verb == "unfail" && what) {
      cluster.EndFail(worker, *what);
    } else if (verb == "broken") {
      cluster.Break(c.Word(1), c.Word(2), c.Text("suspect"), c.Rest(3));
    } else {
      return false;
    }
    return true;
  }

  bool OfClients(const std::string& verb, const Command& c) {
    SimulatedCluster& cluster = *cluster_;
    if (verb == "submit") {
      SimulatedRequest request{.prompt_tokens = c.Int("prompt", 1), .n = c.Int("n", 1)};
      if (c.values.contains("max")) request.max_tokens = c.Int("max", 1);
      cluster.Submit(c.Word(1), request);
    } else if (verb == "abort") {
      cluster.Abort(c.Word(1));
    } else if (verb == "drain") {
      cluster.Drain(c.Word(1));
    } else if (verb == "migrate") {
      cluster.Migrate(c.Word(1), c.Word(2));
    } else if (verb == "takeover") {
      cluster.TakeOver();
    } else {
      return false;
    }
    return true;
  }

  bool OfTime(const std::string& verb, const Command& c) {
    SimulatedCluster& cluster = *cluster_;
    if (verb == "status") {
      cluster.SayStatus();
    } else if (verb == "counters") {
      cluster.SayCounters();
    } else if (verb == "run" && c.words.size() == 1 && c.values.empty()) {
      cluster.RunToEnd();
    } else if (verb == "run" && c.values.size() == 1) {
      const auto& [request, tokens] = *c.values.begin();
      cluster.RunUntil(request, std::stoul(tokens));
    } else if (const auto time = DurationOf(c.Word(1)); verb == "run" && time) {
      cluster.RunFor(*time);
    } else {
      return false;
    }
    return true;
  }

  ControllerOptions options_;
  WorkerTimes times_;
  std::vector<std::string> lines_;
  std::unique_ptr<SimulatedCluster> cluster_;
};

}  // namespace
}  // namespace millrace::cluster

int main(int argc, char** argv) {
  if (!millrace::InitLog("off").ok()) return 1;
  return millrace::RunScripts(
      argc, argv, [] { return std::make_unique<millrace::cluster::ClusterScenario>(); });
}
