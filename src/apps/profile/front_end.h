// What serving adds to the steps: a server over the measured executor, on the loopback interface,
// answers a few streams while its own clock and the client's tell the two apart. One thread calls;
// the server, its engine and the client have theirs until the call returns.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cost/profile.h"
#include "engine/executor.h"

namespace millrace::apps {

struct FrontEndOptions {
  std::string model;  // a folder with a tokenizer
  ModelSpec spec;
  int max_model_len = 0;
};

// Errors: the folder has no tokenizer, or a stream failed. `executor` knows none of the sequence
// ids that begin at 1.
Result<cost::FrontEnd> MeasureFrontEnd(const FrontEndOptions& options,
                                       std::unique_ptr<engine::Executor> executor,
                                       const Clock& clock);

}  // namespace millrace::apps
