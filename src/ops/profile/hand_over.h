// Measures how fast KV goes from one worker to another on this machine: from the pool of one
// pipeline to that of another one, over data planes and memory that both ends map, as a hand-over
// between two worker processes goes. Both ends are in this process and have their threads.
//
// Blocks for a second or two. Any thread, while nothing else uses the stage.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "stage/stage.h"

namespace millrace::ops {

// Bytes per second, the median of `repeats` hand-overs of at most `tokens_max` tokens. The stage
// holds the whole model, and has room for two pipelines with so many tokens.
Result<double> MeasureHandOver(const std::shared_ptr<stage::Stage>& stage, const ModelSpec& spec,
                               int tokens_max, int repeats, const Clock& clock);

}  // namespace millrace::ops
