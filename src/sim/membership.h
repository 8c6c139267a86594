// Membership: when the instances of a simulated service come and go, one machine each, and who is
// there meanwhile. Values; one thread each.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "sim/availability.h"

namespace millrace::sim {

struct MembershipChange {
  enum class What : uint8_t {
    kCame,    // the machine is there, and paid for; it loads the weights
    kReady,   // takes requests
    kNotice,  // will be gone soon: no new requests
    kLost,    // and what it had in memory
  };
  Time at;
  int instance = 0;
  int machine = 0;  // an instance is carried by one machine after another
  What what = What::kCame;
};

struct MembershipOptions {
  int instances = 1;  // at most so many at once; further machines wait to replace one
  double notice_s = 30;
  double load_s = 30;  // from a machine's coming until it takes requests; none at time 0
};

// In order of time. Instances that no machine of the trace carries never come.
std::vector<MembershipChange> MembershipOf(const AvailabilityTrace& trace,
                                           const MembershipOptions& options);

// What became of a service whose instances come and go.
struct MembershipReport {
  int machines = 0;             // at most so many at once
  uint64_t came = 0, lost = 0;  // machines; those of the beginning are not counted
  uint64_t moved = 0;           // requests that went on elsewhere with their KV
  uint64_t replayed = 0;        // and that were computed anew there
  uint64_t replayed_tokens = 0;
  uint64_t waited_most = 0;  // requests, while no instance was there
  double nobody_s = 0;       // how long none was
  double ready_s = 0;        // seconds of all instances together
  double paid_s = 0;         // the same, from their machines' coming on

  void Merge(const MembershipReport& other);
};

// Who is there, while the changes happen one after the other.
class Attendance {
 public:
  // What a change means to requests. kLeaving: it takes no more of them.
  enum class News : uint8_t { kNone, kReady, kLeaving, kLost };

  // Nobody is there at time 0.
  explicit Attendance(int instances) : instances_(static_cast<size_t>(instances)) {}

  News Apply(const MembershipChange& change, Time now);
  // Takes requests.
  bool ready(int instance) const { return at(instance).state == State::kReady; }
  // How often it was lost: what began in an earlier life does not end.
  uint16_t life(int instance) const { return at(instance).life; }
  // Machines and seconds up to now; of requests nothing.
  MembershipReport Report(Time now) const;
  double ReadySeconds(int instance, Time now) const;
  double PaidSeconds(int instance, Time now) const;

 private:
  enum class State : uint8_t { kAbsent, kLoading, kReady, kLeaving };
  struct Instance {
    State state = State::kAbsent;
    int machine = 0;
    uint16_t life = 0;
    Time came;
    std::optional<Time> ready;
    double ready_s = 0, paid_s = 0;  // of its machines before
  };
  const Instance& at(int instance) const { return instances_[static_cast<size_t>(instance)]; }
  void Lose(Instance& instance, Time now);
  void CountReady(Time now);

  std::vector<Instance> instances_;
  std::optional<Time> nobody_since_ = Time{};
  MembershipReport report_;  // of what is over
};

}  // namespace millrace::sim
