// Journal: records the requests that the controller accepted and the outputs that it delivered, so
// that a restarted controller continues where the last one stopped. It is a folder of segments; see
// docs/formats/journal.md. Owned by the controller process; any thread may call it.
//
// Append returns once the kernel has the record. The record survives this process (kill -9) and,
// with JournalSync::kAlways, the machine. Threads that append at the same time share one write.
// Finished requests are kept for a while, so that a client can still fetch the end of its stream;
// then they are compacted away.
//
// One process owns the folder. A leader that was stopped loses it to its successor
// (journal_owner.h). Its later appends have no effect, and they fail, so it cannot acknowledge
// them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/journal/journal_owner.h"
#include "cluster/journal/journal_record.h"

namespace millrace::cluster {

class JournalFile;

enum class JournalSync {
  kNever,   // the kernel decides when to write: survives the process
  kAlways,  // fdatasync before Append returns: survives the machine
};

struct JournalOptions {
  std::string folder;  // created if it does not exist
  JournalSync sync = JournalSync::kNever;
  size_t segment_bytes = 64u << 20;  // beyond this a new file is started
  Duration retain_finished = Duration::Seconds(300);
  std::optional<JournalOwner> owner;  // nullopt: no successor can take the folder over
  // Whether no other process is known to lead. Called before and after every write, on any thread;
  // must not call the journal. Once it has returned false, all appends fail. Empty: always true.
  std::function<bool()> leads;
  // Called once, on any thread, when the folder is lost to this process for good: a later leader
  // has it, or it is gone. Must not call the journal. Empty: nobody asks.
  std::function<void(const Status&)> on_lost;
};

struct JournalReplay {
  JournalState state;  // live requests, and finished ones that are still retained
  uint64_t records = 0;
  uint64_t segments = 0;
  uint64_t torn_bytes = 0;  // of an incomplete last write
  // Set if a segment is damaged or missing. `state` then has the records before the damage, and
  // none after it.
  std::string damage;
};

// Reads the journal in `folder`; empty if the folder does not exist. Changes nothing.
Result<JournalReplay> ReplayJournal(const std::string& folder);

class Journal {
 public:
  // Replays the journal, then starts a new segment. The segments of a damaged journal are kept as
  // *.damaged. `clock` is monotonic and outlives the journal.
  static Result<std::unique_ptr<Journal>> Open(const JournalOptions& options, const Clock& clock,
                                               JournalReplay& replay);
  ~Journal();

  // Appends in the order of the calls. kInvalidArgument: the record does not fit the records before
  // it or is too long; it is not written. kUnavailable: a write failed, and the record may or may
  // not be in the file; the next call starts a new file. Once a successor owns the folder, every
  // call returns kUnavailable.
  Status Append(const JournalRecord& record) { return Append(std::span(&record, 1)); }
  // Appends several records with one write. Stops at the first that does not fit; those before it
  // are appended.
  Status Append(std::span<const JournalRecord> records);
  // Whether appends work now. After a failed write, and when the newest file is gone, it begins a
  // new file, as the next append would. For a caller that has nothing to append.
  Status Probe();
  // Whether this process has lost the folder for good.
  bool lost() const;
  // Whether the request was accepted and is not yet forgotten.
  bool Holds(RequestId request) const;

  struct Stats {
    uint64_t records = 0;
    uint64_t writes = 0;  // fewer than records where threads shared them
    uint64_t compactions = 0;
    uint64_t bytes = 0;  // of the segments since the last snapshot, including it
  };
  Stats stats() const;

 private:
  struct Batch {
    std::string bytes;
    uint64_t records = 0;
    bool written = false;
    Status status;
  };

  Journal(JournalOwnership ownership, JournalOptions options, const Clock& clock);

  Status CheckOwnership() const;
  Status Lose(const Status& why) MR_REQUIRES(mutex_);

  Status ApplyAndFrame(const JournalRecord& record) MR_REQUIRES(mutex_);
  Status Compact() MR_REQUIRES(mutex_);
  Status WriteSnapshot(uint64_t number) MR_REQUIRES(mutex_);
  Status StartSegment() MR_REQUIRES(mutex_);
  Status MakeRoom(MutexLock& lock) MR_REQUIRES(mutex_);
  void WriteBatch() MR_REQUIRES(mutex_);
  void RememberFinished(RequestId request) MR_REQUIRES(mutex_);
  void ForgetOldFinished() MR_REQUIRES(mutex_);

  const JournalOwnership ownership_;
  const JournalOptions options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar written_;
  JournalState state_ MR_GUARDED_BY(mutex_);
  std::deque<std::pair<Time, RequestId>> finished_ MR_GUARDED_BY(mutex_);  // oldest first
  std::unique_ptr<JournalFile> file_ MR_GUARDED_BY(mutex_);
  uint64_t number_ MR_GUARDED_BY(mutex_) = 0;      // of `file_`
  uint64_t next_index_ MR_GUARDED_BY(mutex_) = 0;  // of its next record
  uint64_t file_bytes_ MR_GUARDED_BY(mutex_) = 0;  // including the pending batch
  uint64_t bytes_since_snapshot_ MR_GUARDED_BY(mutex_) = 0;
  uint64_t snapshot_bytes_ MR_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Batch> pending_ MR_GUARDED_BY(mutex_);
  bool writing_ MR_GUARDED_BY(mutex_) = false;
  bool broken_ MR_GUARDED_BY(mutex_) = false;  // `file_` may be torn
  Status lost_ MR_GUARDED_BY(mutex_);  // why the folder was lost to a successor; never cleared
  Stats stats_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::cluster
