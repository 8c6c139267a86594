// PipelineTurns: decides which pipelines may form steps now. The ranks of a group wait for each
// other within every batch, and a worker runs one batch at a time. While a plan changes, a worker
// may belong to groups of two layouts. Two workers could then deadlock, each waiting for the other
// in a different group. To prevent this, pipelines whose groups differ but share workers take turns
// to have steps in flight. Within one layout a worker belongs to one group only, so turns matter
// only during a change of plan.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/worker_messages.h"

namespace millrace::cluster {

class PipelineTurns {
 public:
  // `workers`: of the pipeline, by hop and rank. REQUIRES: the pipeline is new.
  void Open(PipelineId pipeline, const std::vector<std::vector<WorkerId>>& workers);

  // False: it is the turn of another pipeline. This one is in the queue from now on.
  bool MayStep(PipelineId pipeline);

  // The calls below can end a turn. They add the waiting pipelines that may be next to `ask_again`.
  void Close(PipelineId pipeline, std::set<PipelineId>& ask_again);
  // The pipeline formed its steps. `in_flight`: it has steps that have not ended.
  void Stepped(PipelineId pipeline, bool in_flight, std::set<PipelineId>& ask_again);
  // The pipeline's last step in flight has ended.
  void Idle(PipelineId pipeline, std::set<PipelineId>& ask_again);

 private:
  struct Pipeline {
    std::vector<std::vector<WorkerId>> groups;  // of more than one rank
    std::set<PipelineId> entangled;             // pipelines that it takes turns with
    bool in_flight = false;
    std::optional<uint64_t> waits_since;
  };
  static bool Entangled(const Pipeline& a, const Pipeline& b);

  std::map<PipelineId, Pipeline> pipelines_;
  size_t entangled_pipelines_ = 0;
  uint64_t waits_ = 0;  // how many waits have begun so far
};

}  // namespace millrace::cluster
