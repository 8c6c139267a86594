#include "cluster/control/pipelines/fetch_cost.h"

#include <algorithm>

namespace millrace::cluster {

double LinkSecondsPerToken(const std::vector<PipelineHop>& from, const Pipeline& to,
                           const Layout& layout, const LinkProbes& links) {
  double slowest_s = 0;
  for (size_t hop = 0; hop < to.hops.size(); ++hop) {
    const std::vector<Slot>& slots = layout.stages[static_cast<size_t>(to.route[hop].stage)].ranks;
    for (size_t rank = 0; rank < slots.size(); ++rank) {
      double seconds = 0;
      for (const PipelineHop& holder : from) {
        const int layers = holder.layers.Overlap(to.hops[hop].layers).size();
        if (layers == 0) continue;
        const WorkerId source = holder.ranks[std::min(rank, holder.ranks.size() - 1)].worker;
        const auto link = links.links().find({source, to.hops[hop].ranks[rank].worker});
        if (link == links.links().end()) continue;
        const int64_t bytes = slots[rank].facts.kv_bytes_per_token_layer * layers;
        seconds += static_cast<double>(bytes) / link->second.bytes_per_s;
      }
      slowest_s = std::max(slowest_s, seconds);
    }
  }
  return slowest_s;
}

double PartLacking(const std::vector<PipelineHop>& from, const Pipeline& to) {
  int all = 0, there = 0;
  for (const PipelineHop& hop : to.hops) {
    all += hop.layers.size();
    for (const PipelineHop& holder : from) there += holder.layers.Overlap(hop.layers).size();
  }
  return 1 - static_cast<double>(std::min(there, all)) / all;
}

}  // namespace millrace::cluster
