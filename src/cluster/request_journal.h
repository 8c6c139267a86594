// RequestJournal: the journal in a cell's words: what is accepted and told goes in, what an earlier
// life left comes out. CellRecovery hands the latter to a front end.
//
// Accepted comes from submitters, in the order of ids; Told from one thread. Outlives the cell.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/cell.h"
#include "cluster/journal.h"
#include "engine/earlier_requests.h"

namespace millrace::cluster {

class RequestJournal {
 public:
  // kFailedPrecondition: another process has the folder. `clock` is the cell's and outlives it.
  static Result<std::unique_ptr<RequestJournal>> Open(const JournalOptions& options,
                                                      const Clock& clock);

  // CellOptions::first_request and ::journal; the functions refer to this object.
  uint64_t first_request() const { return first_request_; }
  CellJournal Hooks();

  // Requests of the earlier life, by id, once. Those that have not finished stay on record until
  // they have, or End.
  std::vector<engine::EarlierRequest> TakeEarlier();
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
  Status Told(const std::vector<RequestOutput>& news);
  // REQUIRE mutex_.
  std::optional<JournalRecord> RecordOf(const RequestOutput& news);
  void Owe(RequestId request, int n);
  void PayWhatIsOwed();

  const std::unique_ptr<Journal> journal_;
  const Clock& clock_;
  uint64_t first_request_ = 1;

  std::mutex mutex_;
  std::map<RequestId, Live> live_;                    // guarded by mutex_
  std::vector<engine::EarlierRequest> earlier_;       // guarded by mutex_
  std::map<RequestId, sched::NewRequest> resumable_;  // guarded by mutex_
  // Ended without a record, because the disk refused; with their n. None that the journal does not
  // hold, so no more than ran when it began to refuse.
  std::vector<std::pair<RequestId, int>> owed_;  // guarded by mutex_
  std::vector<JournalRecord> records_;           // Told's
};

// Both outlive it.
std::unique_ptr<engine::EarlierRequests> NewCellRecovery(Cell& cell, RequestJournal& journal);

}  // namespace millrace::cluster
