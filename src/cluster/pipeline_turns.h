// Which pipelines may form steps now. The ranks of a group wait for each other within every batch,
// and a worker runs one batch at a time. While a plan changes, a worker has a place in the groups
// of two layouts, and could wait in one for somebody who waits for it in the other: pipelines whose
// groups share workers without being the same group have steps in flight by turns. Within one
// layout no worker has two places, so that all this is asleep but for changes.
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
  // `workers`: by hop and rank. REQUIRES: the pipeline is new.
  void Open(PipelineId pipeline, const std::vector<std::vector<WorkerId>>& workers);

  // False: it is another's turn. The pipeline waits in line from now on.
  bool MayStep(PipelineId pipeline);

  // What ends a turn adds to `ask_again` the waiting pipelines whose turn it may be now.
  void Close(PipelineId pipeline, std::set<PipelineId>& ask_again);
  // It had its turn and formed what it could. `in_flight`: it has steps that have not ended.
  void Stepped(PipelineId pipeline, bool in_flight, std::set<PipelineId>& ask_again);
  // The last of its steps has ended.
  void Idle(PipelineId pipeline, std::set<PipelineId>& ask_again);

 private:
  struct Pipeline {
    std::vector<std::vector<WorkerId>> groups;  // of more than one rank
    std::set<PipelineId> entangled;
    bool in_flight = false;
    std::optional<uint64_t> waits_since;
  };
  static bool Entangled(const Pipeline& a, const Pipeline& b);

  std::map<PipelineId, Pipeline> pipelines_;
  size_t entangled_pipelines_ = 0;
  uint64_t waits_ = 0;  // begun so far
};

}  // namespace millrace::cluster
