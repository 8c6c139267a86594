#include "cluster/control/pipelines/pipeline_turns.h"

#include <algorithm>

namespace millrace::cluster {

bool PipelineTurns::Entangled(const Pipeline& a, const Pipeline& b) {
  for (const std::vector<WorkerId>& one : a.groups) {
    for (const std::vector<WorkerId>& other : b.groups) {
      const bool shared = std::ranges::find_first_of(one, other) != one.end();
      if (shared && one != other) return true;
    }
  }
  return false;
}

void PipelineTurns::Open(PipelineId id, const std::vector<std::vector<WorkerId>>& workers) {
  Pipeline pipeline;
  for (const std::vector<WorkerId>& group : workers) {
    if (group.size() > 1) pipeline.groups.push_back(group);
  }
  for (auto& [other_id, other] : pipelines_) {
    if (!Entangled(pipeline, other)) continue;
    pipeline.entangled.insert(other_id);
    entangled_pipelines_ += other.entangled.empty() ? 1 : 0;
    other.entangled.insert(id);
  }
  entangled_pipelines_ += pipeline.entangled.empty() ? 0 : 1;
  pipelines_.emplace(id, std::move(pipeline));
}

void PipelineTurns::Close(PipelineId id, std::set<PipelineId>& ask_again) {
  Idle(id, ask_again);
  const auto node = pipelines_.extract(id);
  for (PipelineId other_id : node.mapped().entangled) {
    Pipeline& other = pipelines_.at(other_id);
    other.entangled.erase(id);
    entangled_pipelines_ -= other.entangled.empty() ? 1 : 0;
  }
  entangled_pipelines_ -= node.mapped().entangled.empty() ? 0 : 1;
}

// A pipeline whose turn it is gets no more steps while another one waits: its turn ends with the
// steps in flight.
bool PipelineTurns::MayStep(PipelineId id) {
  if (entangled_pipelines_ == 0) return true;
  Pipeline& pipeline = pipelines_.at(id);
  const bool may = std::ranges::none_of(pipeline.entangled, [&](PipelineId other_id) {
    const Pipeline& other = pipelines_.at(other_id);
    const bool before_it =
        other.waits_since && (!pipeline.waits_since || *other.waits_since < *pipeline.waits_since);
    return other.in_flight || before_it;
  });
  if (!may && !pipeline.waits_since) pipeline.waits_since = ++waits_;
  return may;
}

void PipelineTurns::Stepped(PipelineId id, bool in_flight, std::set<PipelineId>& ask_again) {
  Pipeline& pipeline = pipelines_.at(id);
  pipeline.waits_since.reset();
  pipeline.in_flight = in_flight;
  if (!in_flight) Idle(id, ask_again);
}

void PipelineTurns::Idle(PipelineId id, std::set<PipelineId>& ask_again) {
  Pipeline& pipeline = pipelines_.at(id);
  pipeline.in_flight = false;
  for (PipelineId other : pipeline.entangled) {
    if (pipelines_.at(other).waits_since) ask_again.insert(other);
  }
}

}  // namespace millrace::cluster
