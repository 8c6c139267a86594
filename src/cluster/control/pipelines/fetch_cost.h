// Whether a request is ready sooner if it fetches the KV that it has left in another pipeline, or
// if it computes that KV again: the measured links against the measured rate of prefill.
//
// Pure functions of the controller's state.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/link_probes.h"
#include "cluster/control/pipelines/pipelines.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

// How long one token's KV takes from these hops to `to`: its slowest worker counts. Links that were
// not measured count as fast. REQUIRES: `to` is a pipeline of the layout.
double LinkSecondsPerToken(const std::vector<PipelineHop>& from, const Pipeline& to,
                           const Layout& layout, const LinkProbes& links);

// The part of the layers of `to` that none of these hops has, from 0 to 1.
double PartLacking(const std::vector<PipelineHop>& from, const Pipeline& to);

struct FetchCost {
  // A fetch may take so many times as long as the computation, which takes steps from other
  // requests.
  static constexpr double kPatience = 2;

  double link_s = 0;     // until all KV has come that goes the same way
  double lacking = 0;    // PartLacking: computed again in any case
  double compute_s = 0;  // for all layers, after the prompts that wait before it

  bool FetchIsBetter() const { return link_s + lacking * compute_s <= kPatience * compute_s; }
};

}  // namespace millrace::cluster
