// Migrations: requests that change pipelines while they run. Two schedulers know such a request.
// The source runs it while its KV is copied in rounds. Then it is paused at a step boundary, and
// the destination owns it. The KV computed since the last round stays at the source, where the
// destination pulls it like that of any other request (recoverable_kv.h).
//
// Until the pause nothing is lost if either side fails: the source continues the request.
//
// Owned by the controller, which starts the pulls. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/parts/renewal_timer.h"
#include "cluster/control/transfers/kv_pulls.h"
#include "core/worker_messages.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

struct MigrationsOptions {
  size_t migrations_max = 16;
  int block_size = 0;
  Duration hold_limit;  // how long the source holds KV, unless it is renewed
};

class Migrations {
 public:
  struct Migration {
    PipelineId from, to;
    bool pausing = false;  // the rounds are over
    int rounds = 0;        // ended
    int pulls = 0;         // of this round that have not ended
    int preemptions = 0;   // at the source, when the round began
    // By sequence: what the source had then, how many tokens of it the destination was asked to
    // import, and how many tokens of output the destination knows.
    std::vector<sched::SequenceKv> kv;
    std::vector<int> imported;
    std::vector<size_t> known;
    std::optional<FetchedLayers> fetched;  // by all rounds
    RenewalTimer renewal;
  };
  // How a pause ended. kEnded: so has the request. kNoRoom: the destination has no blocks for the
  // rest. In both cases the migration has failed, and nothing is held for it.
  enum class Outcome : uint8_t { kEnded, kNoRoom, kMoved };
  struct Paused {
    Outcome outcome = Outcome::kEnded;
    Migration migration;
    std::optional<sched::DetachedRequest> request;  // as it left the source; unset: kEnded
    bool pulls_rest = false;                        // the destination pulls what the source holds
  };

  explicit Migrations(MigrationsOptions options) : options_(options) {}

  bool full() const { return all_.size() >= options_.migrations_max; }
  const std::map<RequestId, Migration>& all() const { return all_; }
  // Null: the request does not migrate.
  const Migration* Find(RequestId id) const;

  // The source continues to run the request. On an error nothing has changed. kResourceExhausted:
  // migrations_max; kFailedPrecondition: some sequence has too little KV; others as of
  // Scheduler::Add.
  Status Start(RequestId id, PipelineId from, sched::Scheduler& source, PipelineId to,
               sched::Scheduler& target, Time now);
  // The blocks that hold the tokens of a round's pull. Empty: the source no longer has them.
  std::vector<BlockIndex> SourceOf(const sched::KvPull& pull) const;
  // A pull of a round has ended, and the destination knows it. After the last one of the round,
  // appends the pulls of another round that may start now, or the request is one of Pausing. False:
  // the caller abandons the migration.
  bool PullEnded(RequestId id, const FetchedLayers& fetched, sched::Scheduler& source,
                 sched::Scheduler& target, Time now, std::vector<sched::KvPull>& pulls);
  // The requests whose rounds are over.
  std::vector<RequestId> Pausing() const;
  // nullopt: a step in flight has the request. Otherwise its migration is over. Appends the pulls
  // of the rest that may start now.
  std::optional<Paused> Pause(RequestId id, sched::Scheduler& source, sched::Scheduler& target,
                              Time now, std::vector<sched::KvPull>& pulls);
  // The destination drops the request and the source continues it. Null: that pipeline is gone.
  Migration Abandon(RequestId id, sched::Scheduler* source, sched::Scheduler* target, Time now);

  // The migrations whose leases are to be renewed, of those whose destination is alive.
  std::vector<RequestId> DueForRenewal(Time now, const std::function<bool(PipelineId to)>& alive);
  // False: the request was preempted, so its blocks are needed at the source.
  bool Renew(RequestId id, sched::Scheduler& source, Time now);

 private:
  // Rounded down: while the source runs it still writes to the last block.
  int WholeBlocks(int tokens) const { return tokens - tokens % options_.block_size; }
  bool RoundEnded(RequestId id, Migration& migration, sched::Scheduler& source,
                  sched::Scheduler& target, Time now, std::vector<sched::KvPull>& pulls) const;

  const MigrationsOptions options_;
  std::map<RequestId, Migration> all_;
};

}  // namespace millrace::cluster
