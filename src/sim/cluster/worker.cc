#include "sim/cluster/worker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace::sim {
namespace {

// Enough for a Join; a modelled machine's memory is that of its MachineModel.
constexpr int64_t kMemoryBytes = int64_t{1} << 40;
constexpr int kNoLimit = std::numeric_limits<int>::max();

cluster::WorkerCoreOptions CoreOptions(const ModelledWorkerOptions& options) {
  cluster::WorkerCoreOptions core;
  core.join.name = options.name;
  core.join.address.incarnation = options.incarnation;
  core.join.address.control = options.name;
  core.join.device = "modelled";
  core.join.memory_bytes = kMemoryBytes;
  return core;
}

const cluster::ActivationBytes& NoBytes() {
  static const auto none = std::make_shared<const std::vector<std::byte>>();
  return none;
}

}  // namespace

ModelledWorker::ModelledWorker(ModelledWorkerOptions options, WorkerWorld& world)
    : options_(std::move(options)), world_(world), core_(CoreOptions(options_)) {}

void ModelledWorker::Join() {
  core_.SessionUp(world_.now());
  Settle();
}

void ModelledWorker::Deliver(ToWorker message) {
  core_.FromController(std::move(message), world_.now());
  Settle();
}

void ModelledWorker::Deliver(Incarnation from, ToPeer message) {
  if (auto* peer = std::get_if<PeerMessage>(&message)) {
    core_.FromPeer(std::move(*peer), world_.now());
  } else if (const auto* rows = std::get_if<ActivationsSent>(&message)) {
    core_.ActivationsArrived(rows->pipeline, rows->step, NoBytes());
  } else if (const auto* ask = std::get_if<KvAsk>(&message)) {
    Answer(from, *ask);
  } else {
    OnAnswer(std::get<KvAnswer>(message));
  }
  Settle();
}

void ModelledWorker::OnTimer(WorkerTimer timer, uint64_t x) {
  if (timer == WorkerTimer::kBatchDone) {
    if (batch_ && x == batch_number_) EndBatch();
    return Settle();
  }
  const ShardId shard(x);
  const auto load = loads_.find(shard);
  if (load == loads_.end()) return;
  has_loaded_ = true;
  const int64_t room = options_.machine->KvTokenLayers(load->second);
  ShardLoaded loaded{.shard = shard, .kv_bytes_per_token_layer = 1, .kv_bytes = room};
  if (room < 1) loaded.status = ResourceExhausted("the weights leave no memory for KV");
  // Simulated prompts have any token and any length.
  core_.LoadEnded(
      loaded, {.vocab_size = kNoLimit, .max_model_len = kNoLimit, .max_batched_tokens = kNoLimit});
  Settle();
}

void ModelledWorker::SetNotice(MachineNotice notice) {
  core_.SetNotice(notice, world_.now());
  Settle();
}

void ModelledWorker::PeerGone(Incarnation peer) {
  std::vector<TransferId> failed;
  for (const auto& [id, pull] : pulls_) {
    if (std::ranges::any_of(pull.asked, [&](const auto& part) { return part.second == peer; })) {
      failed.push_back(id);
    }
  }
  for (const TransferId id : failed) EndPull(id, Unavailable("the source is gone"));
  Settle();
}

void ModelledWorker::Settle() {
  for (;;) {
    actions_.clear();
    core_.TakeActions(actions_);
    if (actions_.empty()) {
      if (batch_) return;
      batch_ = core_.NextBatch(world_.now());
      if (!batch_) return;
      StartBatch();
      continue;
    }
    std::vector<cluster::WorkerAction> actions = std::exchange(actions_, {});
    for (cluster::WorkerAction& action : actions) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
    actions_ = std::move(actions);
  }
}

void ModelledWorker::Do(cluster::SendUp& action) {
  world_.SendUp(options_.place, std::move(action.message));
}

void ModelledWorker::Do(cluster::SendToPeer& action) {
  const Incarnation to = action.to.incarnation;
  if (!world_.SendToPeer(options_.place, to, std::move(action.message), 0)) {
    core_.PeerLost(to, Unavailable("the peer is gone or out of reach"));
  }
}

void ModelledWorker::Do(cluster::SendActivations& action) {
  double bytes = 0;
  if (action.step != kTestStep) {
    const auto part =
        std::ranges::find(ended_, action.pipeline, &cluster::ReadyBatch::Part::pipeline);
    MR_CHECK(part != ended_.end()) << "activations of a step that did not run";
    bytes = options_.activation_bytes_per_token * static_cast<double>(part->plan->tokens.size());
  }
  const Incarnation to = action.to.incarnation;
  const ActivationsSent rows{action.pipeline, action.step};
  if (!world_.SendToPeer(options_.place, to, rows, bytes)) {
    core_.PeerLost(to, Unavailable("the peer is gone or out of reach"));
  }
}

void ModelledWorker::Do(cluster::StartLoad& action) {
  const ShardId id = action.load.shard;
  loads_[id] = action.load.layers;
  Duration takes = has_loaded_ ? Duration() : options_.load_time;
  if (world_.now() >= Time{}) takes = std::max(takes, options_.change_load_time);
  world_.After(options_.place, action.same_as ? Duration() : takes, WorkerTimer::kLoaded,
               id.value());
}

void ModelledWorker::Do(cluster::StartPipeline& action) {
  pipelines_[action.pipeline] = {action.options.layers, action.options.cache_activations_at};
  core_.PipelineStarted(action.pipeline, OkStatus());
}

void ModelledWorker::Do(cluster::DropPipeline& action) {
  pipelines_.erase(action.pipeline);
  std::erase_if(held_, [&](const auto& h) { return h.second.handle.pipeline == action.pipeline; });
}

void ModelledWorker::Do(cluster::EndSession& action) {
  core_.SessionDown(world_.now());
  pulls_.clear();
  world_.EndSession(options_.place, action.for_good);
}

// Rows that compute only some of the layers, because the others have their KV, are parts of their
// own.
void ModelledWorker::AddParts(const cluster::ReadyBatch::Part& part,
                              std::vector<BatchPart>& parts) {
  const auto here = pipelines_.find(part.pipeline);
  if (here == pipelines_.end()) return;  // closed since its step arrived
  const LayerRange layers = here->second.layers;
  const bool whole = std::ranges::none_of(
      part.plan->sequences, [](const SequenceStep& s) { return s.only_layers.has_value(); });
  if (whole) {
    parts.push_back({layers, ShapeOf(*part.plan)});
    return;
  }
  for (const SequenceStep& s : part.plan->sequences) {
    const LayerRange runs = s.only_layers ? layers.Overlap(*s.only_layers) : layers;
    if (runs.size() < 1) continue;
    StepPlan alone;
    alone.sequences.push_back(s);
    parts.push_back({runs, ShapeOf(alone)});
  }
}

void ModelledWorker::StartBatch() {
  ++batch_number_;
  const Time now = world_.now();
  parts_.clear();
  cost::BatchShape shape;
  for (const auto& part : batch_->parts) {
    AddParts(part, parts_);
    Count(*part.plan);
  }
  for (const BatchPart& part : parts_) shape = Sum(shape, part.shape);
  const Duration took =
      parts_.empty() ? Duration() : Duration::Seconds(options_.machine->BatchSeconds(parts_, now));
  busy_ = busy_ + took;
  busy_until_ = now + took;
  world_.BatchStarted(options_.place, shape, busy_until_);
  world_.After(options_.place, took, WorkerTimer::kBatchDone, batch_number_);
}

void ModelledWorker::Count(const StepPlan& plan) {
  ++use_.steps;
  use_.sequences += plan.sequences.size();
  // A sequence whose table is sent anew was preempted, unless it is new. One that was preempted
  // before its first step is not counted.
  const auto anew =
      static_cast<size_t>(std::ranges::count(plan.sequences, 0, &SequenceStep::keep_blocks));
  use_.preemptions += anew - std::min(anew, plan.started.size());
  use_.full_of_sequences += std::ssize(plan.sequences) >= options_.max_num_seqs;
  use_.full_of_tokens += std::ssize(plan.tokens) >= options_.max_num_batched_tokens;
}

void ModelledWorker::EndBatch() {
  std::vector<cluster::PartOutput> outputs(batch_->parts.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    AnswerTo(*batch_->parts[i].plan, outputs[i].result);
  }
  ended_ = std::move(batch_->parts);
  batch_.reset();
  core_.BatchEnded(OkStatus(), std::move(outputs), world_.now());
}

void ModelledWorker::Do(cluster::Export& action) {
  const ExportKv& kv = action.kv;
  held_[kv.handle.generation] = {action.layers, kv.handle, kv.tokens, world_.now() + kv.lease};
}

void ModelledWorker::Do(cluster::StartPull& action) {
  const PullKv& what = action.pull;
  Pull& pull = pulls_[what.transfer];
  pull.started = world_.now();
  const bool empty = what.first_token == what.end_token;
  for (const KvSource& source : what.sources) {
    const LayerRange layers = source.layers.Overlap(action.layers);
    if (empty || layers.size() < 1) continue;
    KvAsk ask{
        what.transfer, next_part_++, source.handle, layers, what.first_token, what.end_token, {}};
    const bool here = source.from.incarnation == options_.incarnation;
    const bool wanted = what.activations == PulledActivations::kAny ||
                        (what.activations == PulledActivations::kLocal && here);
    if (wanted && layers.end == action.layers.end) ask.activations_at = layers.end;
    pull.asked.emplace(ask.part, source.from.incarnation);
    if (!world_.SendToPeer(options_.place, source.from.incarnation, ask, 0)) {
      return EndPull(what.transfer, Unavailable("the source is gone or out of reach"));
    }
  }
  if (pull.asked.empty()) EndPull(what.transfer, OkStatus());
}

void ModelledWorker::Answer(Incarnation to, const KvAsk& ask) {
  KvAnswer answer{.transfer = ask.transfer, .part = ask.part};
  const auto held = held_.find(ask.handle.generation);
  const int tokens = ask.end_token - ask.first_token;
  if (held == held_.end() || held->second.handle != ask.handle ||
      held->second.until < world_.now() || held->second.tokens < ask.end_token ||
      !held->second.layers.Contains(ask.layers)) {
    answer.status = NotFound("the KV is not held here");
  } else {
    answer.bytes = options_.kv_bytes_per_token_layer * tokens * ask.layers.size();
    const auto open = pipelines_.find(ask.handle.pipeline);
    if (ask.activations_at && open != pipelines_.end()) {
      answer.activations =
          std::ranges::count(open->second.cache_activations_at, *ask.activations_at) > 0;
      if (answer.activations && to != options_.incarnation) {
        answer.bytes += options_.activation_bytes_per_token * tokens;
      }
    }
  }
  const double bytes = answer.bytes;
  (void)world_.SendToPeer(options_.place, to, std::move(answer),
                          bytes);  // gone: it does not matter
}

void ModelledWorker::OnAnswer(const KvAnswer& answer) {
  const auto found = pulls_.find(answer.transfer);
  if (found == pulls_.end() || found->second.asked.erase(answer.part) == 0) return;
  if (!answer.status.ok()) return EndPull(answer.transfer, answer.status);
  found->second.bytes += static_cast<int64_t>(answer.bytes);
  found->second.activations = found->second.activations || answer.activations;
  if (found->second.asked.empty()) EndPull(answer.transfer, OkStatus());
}

void ModelledWorker::EndPull(TransferId id, Status status) {
  const auto found = pulls_.find(id);
  PullDone done{.transfer = id,
                .status = std::move(status),
                .bytes = found->second.bytes,
                .seconds = (world_.now() - found->second.started).seconds(),
                .activations = found->second.activations};
  pulls_.erase(found);
  if (done.status.ok()) world_.PullEnded(done.seconds);
  core_.PullEnded(done);
}

}  // namespace millrace::sim
