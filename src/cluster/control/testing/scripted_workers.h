// ScriptedWorkers: a test fixture with a ControllerCore and simulated workers, which load and open
// at once. Steps and pulls are kept until the test ends them. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/control/controller_core.h"

namespace millrace::cluster {

class ScriptedWorkers : public ::testing::Test {
 protected:
  static constexpr int kLayers = 4;
  static constexpr int kBlockSize = 4;
  static constexpr StageRole kBoth = StageRole::kBoth, kPrefill = StageRole::kPrefill,
                             kDecode = StageRole::kDecode;
  static constexpr LayerRange kAll{0, 4}, kFront{0, 2}, kBack{2, 4};
  using Stages = std::vector<std::pair<LayerRange, StageRole>>;
  template <typename T>
  using Sent = std::vector<std::pair<uint64_t, T>>;  // by worker, in order

  static ControllerOptions Options() {
    ControllerOptions options;
    options.term = Term(1);
    options.model = "m";
    options.num_layers = kLayers;
    options.scheduler.block_size = kBlockSize;
    options.scheduler.max_model_len = 64;
    return options;
  }
  // A plan of chains: a stage follows the one before it unless it begins at layer 0.
  static Plan Chains(const Stages& stages) {
    Plan plan{.num_layers = kLayers};
    for (int i = 0; i < std::ssize(stages); ++i) {
      const auto& [layers, role] = stages[static_cast<size_t>(i)];
      plan.stages.push_back({.layers = layers, .role = role});
      plan.edges.push_back({layers.begin == 0 ? std::nullopt : std::optional(i - 1), i, 1});
      if (layers.end == kLayers) plan.edges.push_back({i, std::nullopt, 1});
    }
    return plan;
  }
  void Start(ControllerOptions options) {
    tested_.clear();
    c_ = std::move(ControllerCore::Create(std::move(options))).value();
  }
  void Start(Plan plan) {
    ControllerOptions options = Options();
    options.plan = std::move(plan);
    Start(std::move(options));
  }

  void Join(uint64_t worker, millrace::Join join = {}) {
    join.name = Name(worker);
    join.address.incarnation = Incarnation(worker * 10);
    c_->Receive(ConnectionId(worker), std::move(join), now_);
    Settle();
  }
  void Lose(uint64_t worker) {
    c_->ConnectionLost(ConnectionId(worker), Unavailable("gone"), now_);
    Settle();
  }
  void Leaves(uint64_t worker) {
    c_->Receive(ConnectionId(worker), Leaving{}, now_);
    Settle();
  }
  void Stays(uint64_t worker) {
    c_->Receive(ConnectionId(worker), Staying{}, now_);
    Settle();
  }
  static std::string Name(uint64_t worker) { return "w" + std::to_string(worker); }

  Status Submit(uint64_t id, int prompt_tokens = 10, int n = 1,
                std::optional<int> max_tokens = std::nullopt) {
    SamplingParams params;
    params.n = n;
    params.max_tokens = max_tokens;
    return SubmitAs(id, std::move(params), prompt_tokens);
  }
  Status SubmitAs(uint64_t id, SamplingParams params, int prompt_tokens = 10) {
    sched::NewRequest request{.id = RequestId(id)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(prompt_tokens, 5);
    request.params = std::make_shared<const SamplingParams>(std::move(params));
    Status submitted = c_->Submit(std::move(request), now_);
    Settle();
    return submitted;
  }

  // Advances the time, with heartbeats of all workers except the `silent` ones.
  void Pass(double seconds, const std::set<uint64_t>& silent = {}) {
    constexpr double kBeat = 0.25;
    for (double left = seconds; left > 0; left -= kBeat) {
      now_ = now_ + Duration::Seconds(std::min(left, kBeat));
      for (const WorkerStatus& worker : c_->Describe(now_).workers) {
        const uint64_t number = std::stoull(worker.name.substr(1));
        if (silent.contains(number)) continue;
        Heartbeat beat = beat_of_.contains(number) ? beat_of_.at(number) : Heartbeat{};
        beat.incarnation = Incarnation(number * 10);
        beat.sequence = ++beats_;
        c_->Beat(ConnectionId(number), beat, now_);
      }
      Settle();
    }
  }

  // Exchanges messages until no more follow.
  void Settle() {
    for (int round = 0; round < 8; ++round) {
      std::vector<ControllerAction> actions;
      c_->Tick(now_);
      c_->Advance(now_);
      c_->TakeActions(actions);
      for (ControllerAction& action : actions) {
        if (auto* send = std::get_if<SendToWorker>(&action)) Do(send->to.value(), send->message);
      }
      c_->TakeOutputs(outputs_);
      c_->CheckIntegrity();
    }
  }

  // Ends the worker's oldest step, with a token for each sequence.
  void EndStep(uint64_t worker) {
    for (auto step = steps_.begin(); step != steps_.end(); ++step) {
      if (step->first != worker) continue;
      const PipelineStep ended = step->second;
      steps_.erase(step);
      StepResult result{.id = ended.plan->id};
      for (const SequenceStep& s : ended.plan->sequences) {
        result.sequences.push_back({.id = s.id, .token = 9});
      }
      return Answer(ended.pipeline, std::move(result));
    }
    FAIL() << "no step is in flight at worker " << worker;
  }
  // The worker that answers the pipeline's steps answers one.
  void Answer(PipelineId pipeline, StepResult result) {
    c_->Receive(ConnectionId(answers_.at(pipeline)), StepDone{pipeline, std::move(result)}, now_);
    Settle();
  }
  void EndPull(size_t index, Status status = OkStatus()) {
    ASSERT_LT(index, pulls_.size());
    const auto [worker, pull] = pulls_[index];
    pulls_.erase(pulls_.begin() + static_cast<std::ptrdiff_t>(index));
    const bool activations = status.ok() && pull.activations != PulledActivations::kNone;
    c_->Receive(ConnectionId(worker),
                PullDone{.transfer = pull.transfer,
                         .status = std::move(status),
                         .bytes = pull_bytes_,
                         .seconds = pull_seconds_,
                         .activations = activations},
                now_);
    Settle();
  }
  // The workers with steps in flight.
  std::set<uint64_t> Busy() const {
    std::set<uint64_t> busy;
    for (const auto& [worker, step] : steps_) busy.insert(worker);
    return busy;
  }
  ClusterStatus Describe() const { return c_->Describe(now_); }
  size_t Tokens(uint64_t id) const {
    size_t tokens = 0;
    for (const RequestOutput& output : outputs_) {
      if (output.request == RequestId(id)) tokens += output.tokens.size();
    }
    return tokens;
  }

  std::unique_ptr<ControllerCore> c_;
  int64_t kv_bytes_ = 65536;  // of each worker
  int64_t pull_bytes_ = 0;    // of each pull that ends
  double pull_seconds_ = 0;
  Time now_;
  std::map<uint64_t, Status> load_fails_;  // by worker: its later loads fail with this status
  std::map<uint64_t, Heartbeat> beat_of_;  // by worker: what its heartbeats say
  std::set<uint64_t> open_hangs_;          // workers that do not open pipelines
  std::set<uint64_t> load_hangs_;          // workers whose later loads do not end
  bool tests_hang_ = false;                // test steps do not come back
  Sent<LoadShard> loads_;
  Sent<PipelineStep> steps_;
  std::map<PipelineId, uint64_t> answers_;  // the worker that answers its steps
  Sent<PullKv> pulls_;
  Sent<ExportKv> exported_;
  Sent<ProbeLink> probes_;
  std::set<uint64_t> asked_to_leave_;
  std::vector<RequestOutput> outputs_;

 private:
  void Do(uint64_t worker, ToWorker& message) {
    if (auto* load = std::get_if<LoadShard>(&message)) {
      loads_.emplace_back(worker, *load);
      if (load_hangs_.contains(worker)) return;
      ShardLoaded loaded{.shard = load->shard};
      loaded.kv_bytes_per_token_layer = 8;
      loaded.kv_bytes = kv_bytes_;
      if (const auto fails = load_fails_.find(worker); fails != load_fails_.end()) {
        loaded.status = fails->second;
      }
      c_->Receive(ConnectionId(worker), loaded, now_);
    } else if (auto* open = std::get_if<OpenPipeline>(&message)) {
      answers_[open->pipeline] = open->hops.back().ranks.front().incarnation.value() / 10;
      if (open_hangs_.contains(worker)) return;
      c_->Receive(ConnectionId(worker), PipelineOpened{open->pipeline}, now_);
    } else if (auto* step = std::get_if<PipelineStep>(&message)) {
      if (!step->plan->IsTest()) {
        steps_.emplace_back(worker, std::move(*step));
      } else if (!tests_hang_ && tested_.insert(step->pipeline).second) {
        c_->Receive(ConnectionId(answers_.at(step->pipeline)),
                    StepDone{step->pipeline, {.id = kTestStep}}, now_);
      }
    } else if (auto* pull = std::get_if<PullKv>(&message)) {
      pulls_.emplace_back(worker, std::move(*pull));
    } else if (auto* exported = std::get_if<ExportKv>(&message)) {
      exported_.emplace_back(worker, std::move(*exported));
    } else if (const auto* probe = std::get_if<ProbeLink>(&message)) {
      probes_.emplace_back(worker, *probe);
    } else if (std::holds_alternative<Leave>(message)) {
      asked_to_leave_.insert(worker);
    }
  }

  std::set<PipelineId> tested_;  // whose test step has come back
  uint64_t beats_ = 0;
};

}  // namespace millrace::cluster
