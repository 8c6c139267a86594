// ExecProvider: a command of the operator that acquires and releases machines. It is run in /bin/sh
// for each call, reads one JSON object from stdin, and writes one to stdout (docs/fleet.md):
//
//   {"op": "list", "kind": "spot"}                     {"machines": [{"id": "i-1", "worker":
//   "w1"}]}
//   {"op": "acquire", "kind": "spot", "count": 2}      {}
//   {"op": "release", "kind": "spot", "machine": "i-1"}  {}
//   {"op": "price", "kind": "spot"}                    {"price_usd_per_h": 0.35}
//
// Without "worker" the machine's id is the name of its worker. An answer with "error", or an exit
// code that is not 0, is a failure. Owned by FleetHost; one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "ops/fleet/machine_provider.h"

namespace millrace::ops {

// kInvalidArgument says what is wrong, and what is expected.
Result<std::vector<cluster::ListedMachine>> ReadMachineList(const Json& answer);
Result<std::optional<double>> ReadMachinePrice(const Json& answer);

class ExecProvider : public MachineProvider {
 public:
  ExecProvider(std::string command, std::string kind, Duration timeout,
               const std::atomic<bool>& stop)
      : command_(std::move(command)), kind_(std::move(kind)), timeout_(timeout), stop_(stop) {}

  Result<std::vector<cluster::ListedMachine>> List() override;
  Status Acquire(int count) override;
  Status Release(const std::string& id) override;
  Result<std::optional<double>> Price() override;

 private:
  Result<Json> Call(Json request);
  // The command's output. Its exit code must be 0.
  Result<std::string> Run(const std::string& request);

  const std::string command_, kind_;
  const Duration timeout_;
  const std::atomic<bool>& stop_;
  const SteadyClock clock_;
};

}  // namespace millrace::ops
