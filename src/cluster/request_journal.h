// RequestJournal: the journal in a controller's words: what is accepted and told goes in, what an
// earlier life left comes out. ControllerRecovery hands the latter to a front end.
//
// Accepted comes from submitters, in the order of ids; Delivered from one thread. Outlives the
// controller.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/controller_host.h"
#include "cluster/journal.h"
#include "engine/recovered_requests.h"

namespace millrace::cluster {

class RequestJournal {
 public:
  // kFailedPrecondition: another process has the folder. `clock` is the controller's and outlives
  // it.
  static Result<std::unique_ptr<RequestJournal>> Open(const JournalOptions& options,
                                                      const Clock& clock);

  // ControllerHostOptions::first_request and ::journal; the functions refer to this object.
  uint64_t first_request() const { return first_request_; }
  ControllerJournal Hooks();

  // Requests of the earlier life, by id, once. Those that have not finished stay on record until
  // they have, or End.
  std::vector<engine::RecoveredRequest> TakeRecovered();
  // What a scheduler needs to go on with one of them; nullopt: it is not there, or has finished.
  std::optional<sched::NewRequest> TakeResumable(RequestId request);
  // Records that nothing more will come of it.
  void End(RequestId request);

  Journal::Stats stats() const { return journal_->stats(); }

 private:
  struct Live {
    std::vector<uint32_t> positions;  // by continuation
    int open = 0;                     // of these have not ended
    bool logprobs = false;            // somebody may want them in a later life
  };

  RequestJournal(std::unique_ptr<Journal> journal, const Clock& clock)
      : journal_(std::move(journal)), clock_(clock) {}
  void Take(const JournalState& state);
  Status Accepted(const sched::NewRequest& request, const engine::EngineRequest& asked);
  Status Delivered(const std::vector<RequestOutput>& outputs);
  std::optional<JournalRecord> RecordOf(const RequestOutput& output) MR_REQUIRES(mutex_);
  void AddPendingEnd(RequestId request, int n) MR_REQUIRES(mutex_);
  void FlushPendingEnds() MR_REQUIRES(mutex_);

  const std::unique_ptr<Journal> journal_;
  const Clock& clock_;
  uint64_t first_request_ = 1;

  Mutex mutex_;
  std::map<RequestId, Live> live_ MR_GUARDED_BY(mutex_);
  std::vector<engine::RecoveredRequest> earlier_ MR_GUARDED_BY(mutex_);
  std::map<RequestId, sched::NewRequest> resumable_ MR_GUARDED_BY(mutex_);
  // Ended without a record, because the disk refused; with their n. None that the journal does not
  // hold, so no more than ran when it began to refuse.
  std::vector<std::pair<RequestId, int>> pending_ends_ MR_GUARDED_BY(mutex_);
  std::vector<JournalRecord> records_;  // Delivered's
};

// Both outlive it.
std::unique_ptr<engine::RecoveredRequests> NewControllerRecovery(ControllerHost& host,
                                                                 RequestJournal& journal);

}  // namespace millrace::cluster
