// The layout of `millrace up` for which no option asks: the fastest one on one machine that fits.
//
// Copies of the model are the fastest under load: no worker waits for another one within a step.
// Next come the ranks of a stage, which share each layer and its memory. Last come the stages of a
// pipeline, which take turns (docs/performance.md has all three). Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/control/layout/layout_shape.h"
#include "core/model_spec.h"

namespace millrace::apps {

struct HostLayoutNeed {
  ModelSpec spec;
  int workers = 1;
  int max_model_len = 1;   // tokens of the longest sequence
  int64_t free_bytes = 0;  // of the machine
  int64_t kv_bytes = 0;    // for KV, of all workers together
};

struct HostLayout {
  cluster::LayoutShape shape;
  std::string why;  // a sentence for the log
};

HostLayout FastestOnOneHost(const HostLayoutNeed& need);

}  // namespace millrace::apps
