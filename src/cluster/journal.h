// Journal: what the controller promised and what it told, so that a controller that is started
// again goes on where the last one stopped. A folder of segments; docs/formats/journal.md.
//
// Append returns when the kernel has the record: it outlives this process (kill -9), and with
// JournalSync::kAlways the machine. Threads that append at the same time share one write. Finished
// requests are kept for a while, so that a client may still fetch the end of its stream; then they
// are compacted away. Any thread may append; one process owns the folder. A leader that is stopped
// loses it to its successor (journal_owner.h): what it still appends counts for nothing, and it is
// told so before anybody could hear of it.
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
#include "cluster/journal_owner.h"
#include "cluster/journal_record.h"

namespace millrace::cluster {

class JournalFile;

enum class JournalSync {
  kNever,   // the kernel writes when it likes: survives the process
  kAlways,  // fdatasync before Append returns: survives the machine
};

struct JournalOptions {
  std::string folder;  // made when it is not there
  JournalSync sync = JournalSync::kNever;
  size_t segment_bytes = 64u << 20;  // a new file beyond this
  Duration retain_finished = Duration::Seconds(300);
  std::optional<JournalOwner> owner;  // nullopt: nobody could succeed us
  // Whether the owner's term lasts, asked before and behind every write; once false it stays so.
  // Any thread, must not call the journal. Empty: it does.
  std::function<bool()> leads;
};

struct JournalReplay {
  JournalState state;  // live requests, and finished ones that were still kept
  uint64_t records = 0;
  uint64_t segments = 0;
  uint64_t torn_bytes = 0;  // of a last write that was cut short
  // A segment was damaged or missing: `state` is what held just before, and nothing behind counts.
  std::string damage;
};

// What a folder holds; empty when it is not there. Reads only.
Result<JournalReplay> ReplayJournal(const std::string& folder);

class Journal {
 public:
  // Replays, then begins a new segment. What was damaged is kept beside as *.damaged. `clock` is
  // monotonic and outlives it.
  static Result<std::unique_ptr<Journal>> Open(const JournalOptions& options, const Clock& clock,
                                               JournalReplay& replay);
  ~Journal();

  // In the order of the calls. kInvalidArgument for a record that does not fit what was appended
  // before, or is too long: it is not written. kUnavailable when the disk refuses: the record may
  // or may not be there; the next call tries with a fresh file. Once a
  // successor has the folder every call ends so.
  Status Append(const JournalRecord& record) { return Append(std::span(&record, 1)); }
  // Several with one write. Those before the first that does not fit are appended.
  Status Append(std::span<const JournalRecord> records);
  // Whether the state has that request: accepted, and not yet forgotten.
  bool Holds(RequestId request) const;

  struct Stats {
    uint64_t records = 0;
    uint64_t writes = 0;  // fewer than records where threads shared them
    uint64_t compactions = 0;
    uint64_t bytes = 0;  // of the segments that count
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

  Status TakeIn(const JournalRecord& record) MR_REQUIRES(mutex_);
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
  uint64_t file_bytes_ MR_GUARDED_BY(mutex_) = 0;  // with what is pending
  uint64_t bytes_since_snapshot_ MR_GUARDED_BY(mutex_) = 0;
  uint64_t snapshot_bytes_ MR_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Batch> pending_ MR_GUARDED_BY(mutex_);
  bool writing_ MR_GUARDED_BY(mutex_) = false;
  bool broken_ MR_GUARDED_BY(mutex_) = false;  // `file_` may be torn
  Status lost_ MR_GUARDED_BY(mutex_);          // to a successor: final
  Stats stats_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::cluster
