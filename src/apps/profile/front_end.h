// What serving adds to the steps: a server over the measured stage, on the loopback interface, as
// `serve MODEL` runs it, answers a few streams while its own clock and the client's tell the two
// apart. One thread calls; server, cell, worker and client have theirs until the call returns.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "cost/profile.h"
#include "engine/stage.h"

namespace millrace::apps {

struct FrontEndOptions {
  std::string model;  // a folder with a tokenizer
  ModelSpec spec;
  int max_model_len = 0;
  int max_batched_tokens = 0;  // that the stage takes
};

// A step of tokens alone: what it and the wait before it took longer than it does on its own.
struct ServedStep {
  int sequences = 0;
  int arrivals = 0;  // of requests, while it ran
  double added_s = 0;
};

// All but `request_s`. Unlike steps, slow moments of the machine, count as little as can be.
cost::FrontEnd FitFrontEnd(std::span<const ServedStep> steps);

// Errors: the folder has no tokenizer, or a stream failed. `stage` holds all layers and has no
// lane.
Result<cost::FrontEnd> MeasureFrontEnd(const FrontEndOptions& options,
                                       std::unique_ptr<engine::Stage> stage, const Clock& clock);

}  // namespace millrace::apps
