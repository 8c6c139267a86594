// Engine: one thread that schedules, executes and commits, for ever (Orca, figure 5: request pool,
// scheduler, engine). Front ends submit from any thread and get news through a sink.
//
// Ownership: the Engine owns its scheduler, executor and thread; sinks belong to their callers and
// must outlive the last news (the one with `finish` for every index), or the Abort that follows.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "core/output.h"
#include "core/sampling_params.h"
#include "engine/executor.h"
#include "sched/scheduler.h"

namespace millrace::engine {

struct EngineRequest {
  std::string external_id;          // the client's x-request-id, for logs; need not be unique
  std::vector<TokenId> prompt;      // at least one token, each inside the vocabulary
  SamplingParams params;            // validated
  int priority = 0;                 // smaller runs first under the priority policy
  std::string cache_salt;           // requests share prefix blocks only within the same salt
};

// Called from the engine's thread, for every sequence of the request, in order. Must not block.
using OutputSink = std::function<void(RequestOutput&&)>;

// Per-request times for metrics, delivered with the request's last output.
struct RequestTiming {
  Time arrived, first_scheduled, first_token, finished;
};

// A consistent picture for /metrics, /health and the bench; cheap, any thread.
struct EngineStats {
  sched::SchedulerStats scheduler;
  std::vector<double> iteration_tokens_buckets;  // filled by the front end's histogram, see serve/
  Duration since_progress;   // how long work that could run has not moved; zero when idle
  std::string stalled_on;    // which request, when since_progress is beyond the watchdog's limit
  bool draining = false;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Any thread. kInvalidArgument: can never fit, with the numbers. kResourceExhausted: the waiting
  // queue is full. kUnavailable: draining. The sink may be called before Submit returns.
  virtual Result<RequestId> Submit(EngineRequest request, OutputSink sink) = 0;
  // Any thread, any moment, any number of times; a request that has ended is ignored. With `index`
  // only that sequence ends. The sink gets kAbort for what had not finished, unless `silent`.
  virtual void Abort(RequestId request, std::optional<int> index = {}) = 0;

  virtual EngineStats Stats() const = 0;
  // State, age, why it waits, blocks, preemptions; nullopt when it is not (or no longer) known.
  virtual std::optional<sched::RequestInfo> Inspect(RequestId request) const = 0;
  virtual std::vector<sched::RequestInfo> InspectAll() const = 0;

  // Refuses new requests; returns when all have finished or `limit` has passed (the rest is aborted).
  virtual void Drain(Duration limit) = 0;
};

}  // namespace millrace::engine
