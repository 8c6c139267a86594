// Measures the time that serving adds to the steps. It runs a server over the measured stage, as
// `serve MODEL` does, and sends it a few streams over the loopback interface. Comparing the
// server's times with the client's separates the two parts. Called from one thread; server,
// controller, worker and client run their own threads until the call returns.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "cost/profile.h"
#include "stage/stage.h"

namespace millrace::apps {

struct FrontEndOptions {
  std::string model;  // a folder with a tokenizer
  ModelSpec spec;
  int max_model_len = 0;
  int max_batched_tokens = 0;  // limit of the stage
};

// A step without prompts: how much longer the step and the wait before it took than the step alone.
struct ServedStep {
  int sequences = 0;
  int arrivals = 0;  // of requests during the step
  double added_s = 0;
};

// Fits everything except `request_s`. Outliers, such as slow moments of the machine, count little.
cost::FrontEnd FitFrontEnd(std::span<const ServedStep> steps);

// Errors: the folder has no tokenizer, or a stream failed. `stage` holds all layers and has no
// pipeline.
Result<cost::FrontEnd> MeasureFrontEnd(const FrontEndOptions& options,
                                       std::unique_ptr<stage::Stage> stage, const Clock& clock);

}  // namespace millrace::apps
