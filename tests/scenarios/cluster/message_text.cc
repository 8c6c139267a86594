#include "tests/scenarios/cluster/message_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace millrace::cluster {

std::string RangeText(LayerRange layers) {
  if (layers.size() == 1) return fmt::format("{}", layers.begin);
  return fmt::format("{}-{}", layers.begin, layers.end - 1);
}

std::string LayersText(LayerRange layers) {
  return fmt::format("layer{} {}", layers.size() == 1 ? "" : "s", RangeText(layers));
}

std::string ShardText(LayerRange layers, TensorRank rank) {
  return rank.size == 1
             ? LayersText(layers)
             : fmt::format("{}, rank {} of {}", LayersText(layers), rank.rank, rank.size);
}

template <typename Id>
std::string MessageText::Number(std::map<Id, int>& numbers, Id id, char letter) {
  const int next = static_cast<int>(numbers.size()) + 1;
  return fmt::format("{}{}", letter, numbers.emplace(id, next).first->second);
}

void MessageText::NameWorker(Incarnation incarnation, std::string name) {
  workers_[incarnation] = std::move(name);
}

void MessageText::NameRequest(TokenId first_token, std::string name, uint64_t seed, int n) {
  requests_[first_token] = {std::move(name), seed, n};
}

std::optional<PipelineId> MessageText::FindPipeline(std::string_view name) const {
  for (const auto& [id, number] : pipelines_) {
    if (fmt::format("p{}", number) == name) return id;
  }
  return std::nullopt;
}

std::string MessageText::NameOf(const WorkerAddress& worker) const {
  return workers_.at(worker.incarnation);
}

std::string MessageText::NameOf(const SequenceStart& start) const {
  const Request& request = requests_.at(start.prompt->front());
  int index = 0;
  while (index + 1 < request.n && SequenceSeed(request.seed, index) != start.seed) ++index;
  return request.n == 1 ? request.name : fmt::format("{}.{}", request.name, index);
}

std::string MessageText::Line(const ToWorker& message) {
  return std::visit([this](const auto& m) { return Of(m); }, message);
}

std::string MessageText::Of(const Welcome&) { return "welcome"; }

std::string MessageText::Of(const Refused& message) {
  return fmt::format("refused{}: {}", message.retry ? ", may retry" : "", message.reason.message());
}

std::string MessageText::Of(const LoadShard& message) {
  std::string shard = ShardText(message.layers, message.rank);
  std::string text = "load " + shard;
  shards_[message.shard] = std::move(shard);
  std::vector<std::string> sources;
  for (const WorkerAddress& source : message.sources) sources.push_back(NameOf(source));
  if (!sources.empty()) text += fmt::format(", from {}", fmt::join(sources, " "));
  return text;
}

std::string MessageText::Of(const UnloadShard& message) {
  return "unload " + shards_.at(message.shard);
}

std::string MessageText::Of(const OpenPipeline& message) {
  std::string text = fmt::format("open {}:", Name(message.pipeline));
  for (const PipelineHop& hop : message.hops) {
    std::vector<std::string> ranks;
    for (const WorkerAddress& rank : hop.ranks) ranks.push_back(NameOf(rank));
    text += fmt::format(" {} at {},", RangeText(hop.layers), fmt::join(ranks, "+"));
  }
  text += fmt::format(" {} blocks", message.num_blocks);
  for (int layer : message.cache_activations_at) {
    text += fmt::format(", cache activations before layer {}", layer);
  }
  return text;
}

std::string MessageText::Of(const ClosePipeline& message) {
  return "close " + Name(message.pipeline);
}

std::string MessageText::Of(const PipelineStep& message) {
  const StepPlan& plan = *message.plan;
  std::vector<std::string> parts;
  for (const SequenceStart& start : plan.started) {
    sequences_[{message.pipeline, start.id}] = NameOf(start);
  }
  for (SequenceId id : plan.released) {
    parts.push_back("release " + sequences_.at({message.pipeline, id}));
  }
  for (const SequenceStep& s : plan.sequences) {
    std::string part = fmt::format("{} [{}, {})", sequences_.at({message.pipeline, s.id}), s.start,
                                   s.start + s.num_tokens);
    if (s.only_layers) {
      part += fmt::format(" in {} only", LayersText(*s.only_layers));
    } else if (s.logits == LogitsWanted::kNone) {
      part += " no sample";
    }
    parts.push_back(std::move(part));
  }
  return fmt::format("step {} of {}: {}", plan.id.value(), Name(message.pipeline),
                     fmt::join(parts, "; "));
}

std::string MessageText::Of(const ExportKv& message) {
  return fmt::format("export {}: tokens [0, {}) of {}, for {:.0f} s", NameOf(message.handle),
                     message.tokens, Name(message.handle.pipeline), message.lease.seconds());
}

std::string MessageText::Of(const ReleaseKv& message) {
  return "release " + NameOf(message.handle);
}

std::string MessageText::Of(const ProbeLink& message) {
  if (message.link == ProbedLink::kToController) return "probe the link to the controller";
  return fmt::format("probe the link from {}", message.link == ProbedLink::kFromWorker
                                                   ? NameOf(message.from)
                                                   : "the controller");
}

std::string MessageText::Of(const TokenTable& message) {
  return fmt::format("the token table {}", message.digest);
}

std::string MessageText::Of(const ReturnBlocks& message) {
  return fmt::format("blocks of {} returned: {}", Name(message.pipeline), message.blocks.size());
}

std::string MessageText::Of(const PullKv& message) {
  std::vector<std::string> sources;
  for (const KvSource& source : message.sources) {
    sources.push_back(fmt::format("{} at {}", NameOf(source.handle), NameOf(source.from)));
  }
  std::string text = fmt::format("pull {}: tokens [{}, {}) into {} from {}", Name(message.transfer),
                                 message.first_token, message.end_token, Name(message.pipeline),
                                 fmt::join(sources, ", "));
  if (message.layers) text += ", " + LayersText(*message.layers);
  if (message.activations == PulledActivations::kAny) text += ", with activations";
  if (message.activations == PulledActivations::kLocal) text += ", with activations held here";
  if (message.background) text += ", in the background";
  return text;
}

std::string MessageText::Of(const Leave& message) { return "leave: " + message.reason; }

}  // namespace millrace::cluster
