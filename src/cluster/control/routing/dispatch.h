// Dispatcher: chooses which of several candidates gets a request. The candidates are the
// pipelines of a controller, or the instances of a simulated service.
//
// Owned by the controller and by the simulator's service. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"

namespace millrace::cluster {

// Predicted time: the least time that the prompts ahead of the request will take (DistServe section
// 4.3), then the fewest requests.
enum class DispatchPolicy : uint8_t { kFewestRequests, kRoundRobin, kRandom, kPredictedTime };

// What decides between candidates that are equal.
enum class DispatchTies : uint8_t { kFirst, kInTurn };

struct DispatchOptions {
  DispatchPolicy policy = DispatchPolicy::kFewestRequests;
  DispatchTies ties = DispatchTies::kFirst;
  uint64_t seed = 0;  // of kRandom
};

struct DispatchLoad {
  int rank = 0;            // only candidates of the lowest rank are chosen
  int64_t requests = 0;    // waiting or running
  Duration prefill_ahead;  // predicted, of the prompts that are not computed yet
};

class Dispatcher {
 public:
  explicit Dispatcher(const DispatchOptions& options) : options_(options) {}

  // The index of the candidate for the next request. The answer depends on the loads and on how
  // often Sent() was called. REQUIRES: there is a candidate.
  size_t Choose(std::span<const DispatchLoad> candidates) const;
  // A request was sent: the next turn begins.
  void Sent() { ++turn_; }

 private:
  const DispatchOptions options_;
  uint64_t turn_ = 0;
};

}  // namespace millrace::cluster
