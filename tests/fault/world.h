// World: the environment of a process of the fault lab: the virtual clock, timers, connections,
// randomness, and the tensor-parallel meeting place. The lab implements it. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/fault/invariants.h"
#include "tests/fault/network.h"

namespace millrace::sim::fault {

class Worker;

enum class TimerKind : uint8_t {
  kDial,
  kHeartbeat,
  kLoaded,
  kPipelineStarted,
  kBatchDone,
  kCollectiveDeadline,
  kPull,
  kMoves,    // the computing thread moves again
  kTick,     // of the controller
  kRestart,  // a supervisor restarts the process
};

class World {
 public:
  virtual ~World() = default;
  virtual Time now() const = 0;
  virtual Network& network() = 0;
  virtual Rng& rng() = 0;
  // Fires at the process that is at `place` now. Never fires if it has ended by then; if it is
  // stopped, fires when it continues.
  virtual void Timer(int place, Duration delay, TimerKind kind, uint64_t x) = 0;
  // The intended receiver of a connection: an acceptor with another incarnation closes it.
  virtual void MeantFor(NetworkConnectionId connection, Incarnation incarnation) = 0;
  // The worker with this incarnation; null if it has ended.
  virtual Worker* Find(Incarnation incarnation) = 0;
  virtual bool stopped(int place) const = 0;
  virtual Defect defect() const = 0;
  // An invariant does not hold.
  virtual void Broken(Invariant invariant, std::string what) = 0;
};

}  // namespace millrace::sim::fault
