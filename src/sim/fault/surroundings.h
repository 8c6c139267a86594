// Surroundings: what a process of the fault lab may use of the world: the virtual clock, timers,
// connections, randomness, and the tensor-parallel meeting place. The lab implements it. One
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/rng.h"
#include "sim/fault/invariants.h"
#include "sim/fault/network.h"

namespace millrace::sim::fault {

class Worker;

enum class TimerKind : uint8_t {
  kDial,
  kHeartbeat,
  kLoaded,
  kLaneStarted,
  kBatchDone,
  kCollectiveDeadline,
  kPullDeadline,
  kTick,     // of the controller
  kRestart,  // a supervisor starts the process again
};

class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual Time now() const = 0;
  virtual Network& network() = 0;
  virtual Rng& rng() = 0;
  // Fires at the process that lives at `place` now; if it is gone by then, never; if it is stopped,
  // when it goes on.
  virtual void Timer(int place, Duration delay, TimerKind kind, uint64_t x) = 0;
  // Who a connection was meant for: the acceptor closes it if it is somebody else.
  virtual void MeantFor(ConnectionId connection, Incarnation incarnation) = 0;
  // The worker with this incarnation, while it lives.
  virtual Worker* Find(Incarnation incarnation) = 0;
  virtual bool stopped(int place) const = 0;
  virtual Defect defect() const = 0;
  // An invariant does not hold.
  virtual void Broken(Invariant invariant, std::string what) = 0;
};

}  // namespace millrace::sim::fault
