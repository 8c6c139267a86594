// Membership: when the instances of a simulated service come and go, one machine each, and which
// are present. Values; one thread each.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "sim/load/availability.h"

namespace millrace::sim {

struct MembershipChange {
  enum class What : uint8_t {
    kCame,    // the machine is present and paid for; it loads the weights
    kReady,   // takes requests
    kNotice,  // will leave soon: no new requests
    kLost,    // with everything in its memory
  };
  Time at;
  int instance = 0;
  int machine = 0;  // different machines may carry an instance one after another
  What what = What::kCame;
};

// What happens to the requests of a machine that will leave soon. Move: it announces that it
// leaves, and the controller moves them with their KV (SpotServe section 4.2). Finish: nothing;
// requests that have not ended by then are recomputed elsewhere.
enum class OnNotice { kFinish, kMove };

struct MembershipOptions {
  int instances = 1;  // maximum at once; further machines wait as replacements
  double notice_s = 30;
  double load_s = 30;  // from a machine's arrival until it takes requests; zero at time 0
};

// Ordered by time. Instances without a machine in the trace never come.
std::vector<MembershipChange> MembershipOf(const AvailabilityTrace& trace,
                                           const MembershipOptions& options);

// Totals of a service whose instances come and go.
struct MembershipReport {
  int machines = 0;             // maximum at once
  uint64_t came = 0, lost = 0;  // machines, without those present at the start
  uint64_t moved = 0;           // requests that continued elsewhere with their KV
  uint64_t replayed = 0;        // requests that were recomputed elsewhere
  uint64_t replayed_tokens = 0;
  uint64_t waited_most = 0;  // requests waiting while no instance was present
  double nobody_s = 0;       // time without an instance
  double ready_s = 0;        // summed over all instances
  double paid_s = 0;         // the same, from the arrival of their machines

  void Merge(const MembershipReport& other);
};

// Tracks which instances are present while changes are applied one after another.
class Availability {
 public:
  // The effect of a change on requests. kLeaving: it takes no new ones.
  enum class Change : uint8_t { kNone, kReady, kLeaving, kLost };

  // At time 0 no instance is present.
  explicit Availability(int instances) : instances_(static_cast<size_t>(instances)) {}

  Change Apply(const MembershipChange& change, Time now);
  // Whether it takes requests.
  bool ready(int instance) const { return at(instance).state == State::kReady; }
  bool here(int instance) const { return at(instance).state != State::kAbsent; }
  // How often it was lost. Work of an earlier run of the instance never ends.
  uint16_t life(int instance) const { return at(instance).life; }
  // Machines and seconds up to now; requests are not included.
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
    double ready_s = 0, paid_s = 0;  // of earlier machines
  };
  const Instance& at(int instance) const { return instances_[static_cast<size_t>(instance)]; }
  void Lose(Instance& instance, Time now);
  void CountReady(Time now);

  std::vector<Instance> instances_;
  std::optional<Time> nobody_since_ = Time{};
  MembershipReport report_;  // of finished intervals
};

}  // namespace millrace::sim
