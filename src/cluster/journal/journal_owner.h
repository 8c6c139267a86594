// JournalOwnership: which process owns a journal's folder. The owner holds the folder's lock. A
// leader also leaves a file with its cluster and term there, so that a successor with a higher term
// can take the folder over from a leader that is stopped and still holds the lock. The old leader
// notices before it acknowledges anything more: it writes and then checks that it owns the folder,
// and the successor takes ownership and then reads. Owned by Journal; any thread may call Check.
#pragma once

#include <optional>
#include <string>

#include "base/folder_lock.h"
#include "base/status.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct JournalOwner {
  std::string cluster;  // 1 to 64 lower-case letters and digits
  Term term;            // compared within one cluster
};

class JournalOwnership {
 public:
  // kFailedPrecondition: another process that is not an earlier leader of this cluster owns the
  // folder, or a later leader has owned it. nullopt: a process that cannot succeed another one.
  static Result<JournalOwnership> Take(const std::string& folder,
                                       const std::optional<JournalOwner>& owner);

  // kUnavailable: a successor owns the folder.
  Status Check() const;

 private:
  JournalOwnership(FolderLock lock, std::string file)
      : lock_(std::move(lock)), file_(std::move(file)) {}

  FolderLock lock_;
  std::string file_;  // exists as long as we own the folder; empty: the lock alone decides
};

}  // namespace millrace::cluster
