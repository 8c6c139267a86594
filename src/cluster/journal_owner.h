// Whose a journal's folder is. A process holds its lock; a leader leaves its cluster and term there
// as well, so that its successor, in a higher term, takes the folder over from a leader that is
// stopped and keeps the lock. That one finds out before it acknowledges anything more: it writes
// and then looks whether the folder is its own, the successor makes it his own and then reads.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "cluster/folder_lock.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct JournalOwner {
  std::string cluster;  // 1 to 64 lower-case letters and digits: terms of one cluster are compared
  Term term;
};

class JournalOwnership {
 public:
  // kFailedPrecondition: another process has the folder and is no earlier leader of this cluster,
  // or a later one has had it. nullopt: nobody who could succeed another.
  static Result<JournalOwnership> Take(const std::string& folder,
                                       const std::optional<JournalOwner>& owner);

  // kUnavailable once a successor has it.
  Status Check() const;

 private:
  JournalOwnership(FolderLock lock, std::string file)
      : lock_(std::move(lock)), file_(std::move(file)) {}

  FolderLock lock_;
  std::string file_;  // is there as long as the folder is ours; empty: the lock says it
};

}  // namespace millrace::cluster
