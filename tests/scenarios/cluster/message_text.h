// MessageText: one short line of text for each message to a worker. Ids become names: workers and
// requests have those of the script, and pipelines (p1), transfers (t1) and exported KV (k1) are
// numbered as they appear. Owned by a SimulatedCluster; one thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/ids.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

std::string RangeText(LayerRange layers);                   // "0-3"
std::string LayersText(LayerRange layers);                  // "layers 0-3"
std::string ShardText(LayerRange layers, TensorRank rank);  // "layers 0-3, rank 0 of 2"

class MessageText {
 public:
  void NameWorker(Incarnation incarnation, std::string name);
  // The request is recognized by the first token of its prompt, so that token must be unique.
  void NameRequest(TokenId first_token, std::string name, uint64_t seed, int n);

  std::string Line(const ToWorker& message);
  std::string Name(PipelineId id) { return Number(pipelines_, id, 'p'); }
  std::string Name(TransferId id) { return Number(transfers_, id, 't'); }
  // nullopt: no pipeline has that name.
  std::optional<PipelineId> FindPipeline(std::string_view name) const;

 private:
  struct Request {
    std::string name;
    uint64_t seed = 0;
    int n = 1;
  };

  std::string Of(const Welcome& message);
  std::string Of(const Refused& message);
  std::string Of(const LoadShard& message);
  std::string Of(const UnloadShard& message);
  std::string Of(const OpenPipeline& message);
  std::string Of(const ClosePipeline& message);
  std::string Of(const PipelineStep& message);
  std::string Of(const ExportKv& message);
  std::string Of(const ReleaseKv& message);
  std::string Of(const PullKv& message);
  std::string Of(const ReturnBlocks& message);
  std::string Of(const ProbeLink& message);
  std::string Of(const TokenTable& message);
  std::string Of(const Leave& message);
  std::string NameOf(const WorkerAddress& worker) const;
  std::string NameOf(const KvHandle& handle) { return Number(kv_, handle.generation, 'k'); }
  std::string NameOf(const SequenceStart& start) const;
  template <typename Id>
  static std::string Number(std::map<Id, int>& numbers, Id id, char letter);

  std::map<Incarnation, std::string> workers_;
  std::map<TokenId, Request> requests_;
  std::map<PipelineId, int> pipelines_;
  std::map<TransferId, int> transfers_;
  std::map<uint64_t, int> kv_;
  std::map<ShardId, std::string> shards_;
  std::map<std::pair<PipelineId, SequenceId>, std::string> sequences_;
};

}  // namespace millrace::cluster
