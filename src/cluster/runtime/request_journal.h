// RequestJournal: connects the controller to the journal. It records accepted requests and
// delivered outputs, and returns the recovered requests of the previous run. NewControllerRecovery
// makes the object that passes these to a front end.
//
// It must outlive the controller. Any thread may call it. Submitters call the `accepted` hook in
// the order of ids; one thread calls the `delivered` hook.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/journal/journal.h"
#include "cluster/recovered_requests.h"
#include "cluster/runtime/controller_host.h"

namespace millrace::cluster {

class RequestJournal {
 public:
  // kFailedPrecondition: another process has the folder open. kUnimplemented: the journal has
  // another format version. `clock` is the controller's and must outlive the journal.
  static Result<std::unique_ptr<RequestJournal>> Open(const JournalOptions& options,
                                                      const Clock& clock);

  // ControllerHostOptions::first_request and ::journal; the functions refer to this object.
  uint64_t first_request() const { return first_request_; }
  ControllerJournal Hooks();

  // Recovered requests of the previous run, by id; a second call returns none. Unfinished requests
  // stay in the journal until they finish or End is called.
  std::vector<RecoveredRequest> TakeRecovered();
  // What a controller needs to continue one of them.
  struct Resumable {
    sched::NewRequest request;
    std::string computed_by;  // as of ControllerCore::Submit
  };
  // nullopt: it is unknown or has finished.
  std::optional<Resumable> TakeResumable(RequestId request);
  // Records that the request ends here.
  void End(RequestId request);

  Journal::Stats stats() const { return journal_->stats(); }

 private:
  struct Live {
    std::vector<uint32_t> positions;  // by continuation
    int open = 0;                     // how many of these have not ended
    bool logprobs = false;            // recorded, because a front end may need them after a restart
  };

  RequestJournal(std::unique_ptr<Journal> journal, const Clock& clock)
      : journal_(std::move(journal)), clock_(clock) {}
  void Take(const JournalState& state);
  // Whether the journal can be written, which the log is told when it changes.
  Status Note(const Status& written);
  Status Accepted(const sched::NewRequest& request, const GenerationRequest& asked);
  Status Delivered(const std::vector<RequestOutput>& outputs);
  std::optional<JournalRecord> RecordOf(const RequestOutput& output) MR_REQUIRES(mutex_);
  void AddPendingEnd(RequestId request, int n) MR_REQUIRES(mutex_);
  void FlushPendingEnds() MR_REQUIRES(mutex_);

  const std::unique_ptr<Journal> journal_;
  const Clock& clock_;
  uint64_t first_request_ = 1;

  Mutex mutex_;
  std::map<RequestId, Live> live_ MR_GUARDED_BY(mutex_);
  std::vector<RecoveredRequest> earlier_ MR_GUARDED_BY(mutex_);
  std::map<RequestId, Resumable> resumable_ MR_GUARDED_BY(mutex_);
  // Requests whose end could not be recorded because a write failed, with their number of
  // continuations. Only requests that the journal holds are listed, so there are at most as many as
  // were running when writes began to fail.
  std::vector<std::pair<RequestId, int>> pending_ends_ MR_GUARDED_BY(mutex_);
  std::vector<JournalRecord> records_;  // used by Delivered only
  std::atomic<bool> works_ = true;      // as of the latest write
};

// `host` and `journal` must outlive it.
std::unique_ptr<RecoveredRequests> NewControllerRecovery(ControllerHost& host,
                                                         RequestJournal& journal);

}  // namespace millrace::cluster
