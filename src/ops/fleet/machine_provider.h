// MachineProvider: acquires and releases the machines of one kind. What it answers is not trusted:
// answers are bounded in size and time, and errors are one line with the cause.
//
// Owned by FleetHost and used by one thread, on which calls may block for the kind's timeout.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/fleet/fleet_spec.h"
#include "cluster/fleet/fleet_types.h"

namespace millrace::ops {

inline constexpr size_t kProviderAnswerBytesMax = 256 << 10;
inline constexpr size_t kMachineNameBytesMax = 253;  // of an id, or of a worker

class MachineProvider {
 public:
  virtual ~MachineProvider() = default;

  // Every machine of the kind, from the moment that it is asked for until it is gone.
  virtual Result<std::vector<cluster::ListedMachine>> List() = 0;
  // The next List has the new machines.
  virtual Status Acquire(int count) = 0;
  // Its worker has left. Releasing a machine that is gone already is no error.
  virtual Status Release(const std::string& id) = 0;
  // USD per hour of one machine. nullopt: it knows none.
  virtual Result<std::optional<double>> Price() { return std::optional<double>(); }
};

// `stop`, once true, ends a call that waits; it outlives the provider. Null for
// FleetProvider::kNone. kInvalidArgument: the environment lacks what the provider needs.
Result<std::unique_ptr<MachineProvider>> MakeProvider(const cluster::FleetKind& kind,
                                                      const cluster::KubernetesAccess& kubernetes,
                                                      const std::atomic<bool>& stop);

}  // namespace millrace::ops
