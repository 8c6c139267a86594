// The embedded store: SQLite in a folder of the controller's machine, for one machine or for
// experiments. NOT HIGHLY AVAILABLE: one process owns the folder (guarded by a file lock), watches
// and leases exist in that process only, and the store is down while its machine is down. Use
// etcd_store.h if a standby must be able to take over.
//
// Every change is on disk before watches report it (WAL, synchronous=FULL). After a restart each
// lease starts again with its full time, as in etcd after a change of its leader.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "cluster/store/store.h"

namespace millrace::cluster {

struct SqliteStoreOptions {
  std::string folder;  // created if it does not exist
  std::string cluster = "default";
  // false: changes survive a crash of the process but not always a power loss; for tests.
  bool survive_power_loss = true;
};

// kFailedPrecondition: another process (or another store in this one) has the folder open.
// kDataLoss: the file is damaged or belongs to another program. `clock` is monotonic and must
// outlive the store. The caller owns the store.
Result<std::unique_ptr<Store>> OpenSqliteStore(const SqliteStoreOptions& options,
                                               const Clock& clock);

}  // namespace millrace::cluster
