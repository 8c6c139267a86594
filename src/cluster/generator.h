// Generator: turns prompts into tokens for a front end. In a server it is the controller of
// a cluster (cluster/runtime/controller_host.h). Requests come from any thread, outputs go through
// a sink.
//
// Ownership: a sink is kept until the request's last output was delivered, and is called from one
// thread of the generator only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/output.h"
#include "core/sampling_params.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

struct GenerationRequest {
  std::string external_id;       // the client's x-request-id, for logs; need not be unique
  std::vector<TokenId> prompt;   // at least one token, all inside the vocabulary
  SamplingParams params;         // validated
  int priority = 0;              // smaller runs first under the priority policy
  std::string cache_salt;        // requests share prefix blocks only within the same salt
  std::string prompt_cache_key;  // a hint where to compute it: sched::NewRequest
  std::string client;            // whose share it takes under the fair policy
  std::string front_end;  // stored with the request if it is journalled; opaque to the generator
  // The first request of the answer that this request is a part of: a journal keeps the order of
  // their output.
  std::optional<RequestId> joins;
};

// Called for every sequence of the request, in order. Must not block.
using OutputSink = std::function<void(RequestOutput&&)>;

// Upper bounds of the histogram of tokens per step; vLLM's buckets.
inline constexpr std::array<int, 15> kIterationTokenBounds = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};

struct StillWorker {
  std::string name, reason;
};

struct GeneratorStats {
  sched::SchedulerStats scheduler;
  // last: above all bounds
  std::array<uint64_t, kIterationTokenBounds.size() + 1> iteration_tokens = {};
  uint64_t iteration_tokens_sum = 0;
  std::optional<sched::RequestInfo> stalled;  // could run but makes no progress (watchdog)
  // The workers that have its step, if they are other processes: what stalls it is not this one.
  std::vector<std::string> stalled_at;
  // Other processes that live and do not compute: they must be restarted.
  std::vector<StillWorker> still_workers;
  bool draining = false;
};

class Generator {
 public:
  virtual ~Generator() = default;

  // Any thread. kInvalidArgument: can never fit; states the numbers. kResourceExhausted: the
  // waiting queue is full. kUnavailable: draining. The sink may be called before Submit returns.
  virtual Result<RequestId> Submit(GenerationRequest request, OutputSink sink) = 0;
  // Any thread. The seed of the request if its parameters have none.
  virtual uint64_t DrawnSeed(RequestId id) const = 0;
  // Any thread, at any time, any number of times; ended requests are ignored. With `index` only
  // that sequence ends. The sink gets kAbort for every sequence that had not finished.
  virtual void Abort(RequestId request, std::optional<int> index = {}) = 0;

  virtual GeneratorStats Stats() const = 0;
  // nullopt when the request is unknown or no longer known.
  virtual std::optional<sched::RequestInfo> Inspect(RequestId request) const = 0;
  // What the time of a request went into until now; nullopt as for Inspect.
  virtual std::optional<TimeAccount> Account(RequestId request) const = 0;
  virtual std::vector<sched::RequestInfo> InspectAll() const = 0;
  // Why requests cannot be computed now, as a sentence for /ready: "Layers 4-7 are not on any
  // worker." nullopt: they can. Requests are accepted anyway and wait.
  virtual std::optional<std::string> NotReady() const { return std::nullopt; }
  // As ControllerCore::PredictedTtft. nullopt: it cannot be predicted yet.
  virtual std::optional<Duration> PredictedTtft(int /*prompt_tokens*/) const {
    return std::nullopt;
  }

  // Refuses new requests from now on. Returns true when all have finished within `limit` and their
  // outputs are delivered. Otherwise aborts the rest, waits for that and returns false. Not from a
  // sink.
  virtual bool Drain(Duration limit) = 0;
};

}  // namespace millrace::cluster
