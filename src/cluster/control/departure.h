// Departures: what the running requests of a pipeline do while one of its workers has a deadline to
// be gone by: each finishes there, moves with its KV, or is computed again elsewhere (SpotServe
// section 4.1, just-in-time arrangement, asked again at every event and not between batches).
//
// Pure functions of the controller's state.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "cluster/control/membership.h"
#include "cluster/control/pipelines.h"
#include "cluster/control/requests.h"
#include "cluster/control/transfers.h"

namespace millrace::cluster {

struct Departure {
  // So long before the deadline, the requests that are still there leave without their KV.
  static constexpr Duration kLastMoment = Duration::Millis(500);

  size_t hop = 0;          // of the pipeline, with the worker that leaves
  Duration left;           // until its deadline; may be negative
  bool may_finish = true;  // false: whoever stops the worker waits for it

  bool IsLastMoment() const { return left <= kLastMoment; }
};

// Whether somebody stops the process and waits for it; its machine may stay.
bool StopsProcess(NoticeSource source);

// The earliest end of a worker of the pipeline. nullopt: none of them has a deadline.
std::optional<Departure> DepartureOf(const Pipeline& pipeline, const Membership& members, Time now);

// Which of `running` should move now, the most urgent first. The others
// finish there, or continue until the last moment because their KV cannot be copied in time.
// `replay_tokens_per_s`: of the pipelines that compute what is not copied. REQUIRES: the pipeline
// is open.
std::vector<RequestId> RequestsToMove(const Pipeline& pipeline,
                                      const std::vector<RequestId>& running,
                                      const Departure& departure, const Requests& requests,
                                      const Transfers& transfers, double replay_tokens_per_s,
                                      Time now);

}  // namespace millrace::cluster
