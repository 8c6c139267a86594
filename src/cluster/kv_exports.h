// KvExports: the KV of this worker that others may pull, as a state machine. The worker's body
// asks it before it reads a byte, and again when it has.
//
//   Export(0 tokens) -> computing --Export--> held <--BeginPull/EndPull--> pulling
//                                              | Release, lease over        | the same, but the
//                                              v                            v last pull ends first
//                                      released | expired (remembered as stale)
//
// Only the owner's messages (Export, Release, ClosePipeline) change what is held; a reader can but
// begin and end pulls, and needs the whole handle, whose nonce nobody can guess. What a pull read
// counts only if nobody took it back meanwhile: the owner may have used the blocks anew. Pure: the
// time comes in. One thread at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong_id.h"
#include "core/worker_messages.h"
#include "engine/stage.h"

namespace millrace::cluster {

enum class ExportState : uint8_t { kComputing, kHeld, kPulling, kReleased, kExpired };

using KvTicket = StrongId<struct KvTicketTag>;

struct KvExportsLimits {
  size_t exports = 65536;
  size_t blocks = size_t{1} << 22;  // of all exports together
  size_t pulls_each = 64;           // under way from one export
  size_t remembered = 4096;         // ended exports, whose handles are known to be stale
};

struct KvExportsCounters {
  uint64_t exposed = 0, extended = 0, released = 0, expired = 0;
  uint64_t pulls_begun = 0, pulls_ended = 0;
  uint64_t taken_back = 0;  // of pulls_ended: what was read may be another request's
  uint64_t unknown = 0;     // handles nobody ever exposed here, or not yet, or long ago
  uint64_t forged = 0;      // right pipeline and generation, wrong nonce
  uint64_t stale = 0;       // pulls and releases of what has ended, or is about to
  uint64_t replayed = 0;    // exposed again after the end, or with less than before
  uint64_t refused = 0;     // beyond what is exposed, or beyond a limit
};

// What a pull may read, until EndPull.
struct KvReadLease {
  KvTicket ticket;
  PipelineId pipeline;
  std::shared_ptr<engine::Stage> stage;
  std::shared_ptr<const std::vector<BlockIndex>> blocks;  // the whole table, from token 0

  Status Read(const engine::KvBox& box, std::span<std::byte> out) const {
    return stage->ReadKv(pipeline, box, *blocks, out);
  }
};

class KvExports {
 public:
  explicit KvExports(const KvExportsLimits& limits = {}) : limits_(limits) {}

  // New, or more of what is held, perhaps in other blocks; the lease runs from now.
  // kInvalidArgument: nothing to read from, or no lease. kFailedPrecondition: it has ended, or was
  // exposed with more. kResourceExhausted: a limit. REQUIRES: the blocks hold the tokens.
  Status Export(LayerRange layers, std::shared_ptr<engine::Stage> stage, const ExportKv& message,
                Time now);
  // Ends when the last pull from it does. Unknown, wrong and stale handles are counted.
  void Release(const KvHandle& handle);
  void ClosePipeline(PipelineId pipeline);  // releases all that it holds

  // kNotFound: unknown, wrong or stale handle (which of them is not told), or tokens that are not
  // exposed yet. kInvalidArgument: layers or heads that are not here, ever. kResourceExhausted: too
  // many pulls at once.
  Result<KvReadLease> BeginPull(const KvHandle& handle, const engine::KvBox& box, Time now);
  // kNotFound: it was taken back meanwhile.
  Status EndPull(KvTicket ticket);

  // Ends the leases that are over; those that are pulled from end with their last pull.
  void Sweep(Time now);

  std::optional<ExportState> StateOf(const KvHandle& handle) const;
  size_t size() const { return exports_.size(); }
  const KvExportsCounters& counters() const { return counters_; }
  // Every count right; crashes with the reason when not.
  void CheckIntegrity() const;

 private:
  struct Name {
    PipelineId pipeline;
    uint64_t generation = 0;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  struct KvExport {
    KvHandle handle;
    LayerRange layers;
    std::shared_ptr<engine::Stage> stage;
    std::shared_ptr<const std::vector<BlockIndex>> blocks;
    int tokens = 0;
    Time until;
    size_t pulls = 0;
    std::optional<ExportState> ending = {};  // as soon as nobody pulls
  };
  using Map = std::map<Name, KvExport>;

  static Name NameOf(const KvHandle& handle) { return {handle.pipeline, handle.generation}; }
  Status Extend(KvExport& kv_export, const ExportKv& message, Time now);
  KvExport* FindRight(const KvHandle& handle);
  bool HasEnded(const Name& name) const;
  // Now, or when the last pull does; returns what follows.
  Map::iterator End(Map::iterator kv_export, ExportState how);

  const KvExportsLimits limits_;
  Map exports_;
  std::map<KvTicket, Name> pulls_;
  std::deque<Name> ended_;
  size_t blocks_ = 0;
  uint64_t next_ticket_ = 1;
  KvExportsCounters counters_;
};

}  // namespace millrace::cluster
