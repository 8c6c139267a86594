// KvExports: a state machine of the KV of this worker that other workers may pull. KvExchange asks
// it before each read, and again after it.
//
//   Export(0 tokens) -> computing --Export--> held <--BeginPull/EndPull--> pulling
//                                              | Release, lease expired     | the same, but the
//                                              v                            v last pull ends first
//                                      released | expired (remembered as stale)
//
// Only the owner's messages (Export, Release, ClosePipeline) change what is exported. A reader can
// only begin and end pulls, and needs the whole handle with its unguessable nonce. The result of a
// pull is valid only if the export was not taken back meanwhile, because the owner may have reused
// the blocks. Owned by KvExchange. Pure: time is passed in. One thread at a time.
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
#include "stage/stage.h"

namespace millrace::cluster {

enum class ExportState : uint8_t { kComputing, kHeld, kPulling, kReleased, kExpired };

using KvTicket = StrongId<struct KvTicketTag>;

struct KvExportsLimits {
  size_t exports = 65536;
  size_t blocks = size_t{1} << 22;  // of all exports together
  size_t pulls_each = 64;           // at once, from one export
  size_t remembered = 4096;         // ended exports whose handles are recognized as stale
};

struct KvExportsCounters {
  uint64_t exposed = 0, extended = 0, released = 0, expired = 0;
  uint64_t pulls_begun = 0, pulls_ended = 0;
  uint64_t taken_back = 0;  // of pulls_ended: the data read may be another request's
  uint64_t unknown = 0;     // handles never exported here, not yet, or long ago
  uint64_t forged = 0;      // right pipeline and generation, wrong nonce
  uint64_t stale = 0;       // pulls and releases of exports that have ended or are ending
  uint64_t replayed = 0;    // exported again after the end, or with fewer tokens
  uint64_t refused = 0;     // beyond what is exported, or beyond a limit
};

// The right to read for one pull, until EndPull.
struct KvReadLease {
  KvTicket ticket;
  PipelineId pipeline;
  std::shared_ptr<stage::Stage> stage;
  std::shared_ptr<const std::vector<BlockIndex>> blocks;  // the whole table, from token 0

  Status Read(const stage::TransferItem& item, std::span<std::byte> out) const {
    return stage->Read(pipeline, item, *blocks, out);
  }
};

class KvExports {
 public:
  explicit KvExports(const KvExportsLimits& limits = {}) : limits_(limits) {}

  // Adds an export, or extends one, which may then have other blocks; the lease starts now.
  // kInvalidArgument: no stage, or an invalid lease or count of tokens. kFailedPrecondition: the
  // export has ended, or had more tokens. kResourceExhausted: a limit is reached. REQUIRES: the
  // blocks hold the tokens.
  Status Export(LayerRange layers, std::shared_ptr<stage::Stage> stage, const ExportKv& message,
                Time now);
  // Ends the export, or marks it to end with its last pull. Invalid handles are only counted.
  void Release(const KvHandle& handle);
  void ClosePipeline(PipelineId pipeline);  // releases all its exports

  // kNotFound: the handle is unknown or wrong (the status does not tell which), or the tokens are
  // not exported yet. kFailedPrecondition: the export has ended, so it is no use to ask again.
  // kInvalidArgument: this worker does not have the layers or heads. kResourceExhausted: too many
  // pulls at once.
  Result<KvReadLease> BeginPull(const KvHandle& handle, const stage::TransferItem& item, Time now);
  // kFailedPrecondition: the export ended meanwhile, so the data read is not valid.
  Status EndPull(KvTicket ticket);

  // Ends exports whose lease has expired, or marks them to end with their last pull.
  void Sweep(Time now);

  std::optional<ExportState> StateOf(const KvHandle& handle) const;
  size_t size() const { return exports_.size(); }
  const KvExportsCounters& counters() const { return counters_; }
  // Crashes if a count is wrong.
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
    std::shared_ptr<stage::Stage> stage;
    std::shared_ptr<const std::vector<BlockIndex>> blocks;
    int tokens = 0;
    Time until;
    size_t pulls = 0;
    std::optional<ExportState> ending = {};  // when the last pull ends
  };
  using Map = std::map<Name, KvExport>;

  static Name NameOf(const KvHandle& handle) { return {handle.pipeline, handle.generation}; }
  Status Extend(KvExport& kv_export, const ExportKv& message, Time now);
  KvExport* FindValid(const KvHandle& handle);
  static Status CheckHeld(const KvExport& kv_export, const stage::KvBox& box);
  static Status CheckHeld(const KvExport& kv_export, const stage::ActivationRange& range);
  const KvHandle* FindEnded(const Name& name) const;
  // Ends the export now, or marks it to end with its last pull. Returns the next one.
  Map::iterator End(Map::iterator kv_export, ExportState how);

  const KvExportsLimits limits_;
  Map exports_;
  std::map<KvTicket, Name> pulls_;
  std::deque<KvHandle> ended_;
  size_t blocks_ = 0;
  uint64_t next_ticket_ = 1;
  KvExportsCounters counters_;
};

}  // namespace millrace::cluster
