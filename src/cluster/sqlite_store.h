// The embedded store: SQLite in a folder of the controller's machine, for one machine or for trying
// things out. NOT HIGHLY AVAILABLE: one process owns the folder (a file lock says so), watches and
// leases are that process's, and when its machine is gone so is the store until it is back. Where a
// standby must take over, use etcd_store.h.
//
// Every change is on the disk before it is told (WAL, synchronous=FULL). After a restart each lease
// has its whole time again, as with etcd after a change of its leader.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "cluster/store.h"

namespace millrace::cluster {

struct SqliteStoreOptions {
  std::string folder;  // made when it is not there
  std::string cluster = "default";
  // false: survives the process's death but not always the machine's; for tests.
  bool survive_power_loss = true;
};

// kFailedPrecondition while another process (or another store in this one) has the folder;
// kDataLoss for a damaged file or one of another program. `clock` is monotonic and outlives it.
Result<std::unique_ptr<Store>> OpenSqliteStore(const SqliteStoreOptions& options,
                                               const Clock& clock);

}  // namespace millrace::cluster
