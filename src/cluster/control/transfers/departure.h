// Departures: what the running requests of a pipeline do while one of its workers has a deadline to
// be gone by: each finishes there, moves with its KV, or is computed again elsewhere (SpotServe
// section 4.1, just-in-time arrangement, asked again at every event and not between batches).
//
// Pure functions of the controller's state.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/transfers/transfers.h"

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

// What the requests of a retiring pipeline do now. Those in neither list finish there, or continue
// until the last moment because their KV cannot be copied in time, or are moving already.
struct Exits {
  std::vector<RequestId> leave;  // for another pipeline, or to wait for one
  std::vector<RequestId> move;   // if they can; the most urgent first
};
// `departure`: of the pipeline; without one all leave. REQUIRES: the pipeline is open.
Exits ExitsOf(const Pipeline& pipeline, const std::optional<Departure>& departure,
              const Pipelines& pipelines, const Requests& requests, const Transfers& transfers,
              Time now);

}  // namespace millrace::cluster
