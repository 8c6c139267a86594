#include "cluster/transfer/kv_exchange.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "cluster/transfer/pull_window.h"

namespace millrace::cluster {
namespace {

using stage::KvBox;

// The export message takes another connection than the pull, and may arrive slightly later.
constexpr Duration kExportDelayMax = Duration::Seconds(2);
constexpr auto kExportPoll = std::chrono::milliseconds(2);

}  // namespace

void KvExchange::Export(LayerRange layers, std::shared_ptr<stage::Stage> stage,
                        const ExportKv& kv) {
  const Time now = clock_.Now();
  MutexLock lock(mutex_);
  exports_.Sweep(now);
  (void)exports_.Export(layers, std::move(stage), kv, now);  // counted; its pulls will fail
}

void KvExchange::Release(const KvHandle& handle) {
  MutexLock lock(mutex_);
  exports_.Release(handle);
}

void KvExchange::PipelineClosed(PipelineId pipeline) {
  MutexLock lock(mutex_);
  exports_.ClosePipeline(pipeline);
}

KvExchangeCounters KvExchange::counters() {
  MutexLock lock(mutex_);
  exports_.Sweep(clock_.Now());
  KvExchangeCounters counters = counters_;
  counters.exports = exports_.counters();
  counters.exposed = exports_.size();
  return counters;
}

Result<net::PullSource> KvExchange::Serve(const KvRequest& request) {
  auto served = ServeBox(request.handle, request.box);
  if (served.ok()) return served;
  MutexLock lock(mutex_);
  ++counters_.refused;
  return served;
}

// Reads without holding the lock. Fails if the owner takes the KV back meanwhile.
Status KvExchange::Read(const KvHandle& handle, const KvBox& box, const RoomFor& room) {
  MutexLock lock(mutex_);
  MR_ASSIGN_OR_RETURN(const KvReadLease lease, exports_.BeginPull(handle, box, clock_.Now()));
  lock.unlock();
  const size_t size = lease.stage->KvBytes(box);
  const Status read = size > kPullChunkBytes
                          ? InvalidArgument("the box exceeds the limit of one pull")
                          : lease.Read(box, room(size));
  lock.lock();
  const Status held = exports_.EndPull(lease.ticket);
  return read.ok() ? held : read;
}

Result<net::PullSource> KvExchange::ServeBox(const KvHandle& handle, const KvBox& box) {
  StagingPool::Buffer buffer;
  MR_RETURN_IF_ERROR(Read(handle, box, [&](size_t size) {
    buffer = staging_.Take(*plane_, size);
    return buffer.bytes;
  }));
  MutexLock lock(mutex_);
  ++counters_.served;
  counters_.served_bytes += buffer.bytes.size();
  return net::PullSource(net::PullSegments{{buffer.bytes}, buffer.pin});
}

// A new plan may leave layers on their worker. Their KV is then copied there, without the network.
bool KvExchange::IsLocal(const KvSource& source) const {
  return source.from.incarnation.value() == plane_->self().incarnation;
}

// Assigns each needed layer and head to one source, in boxes no larger than one pull.
Result<std::vector<KvPiece>> KvExchange::PiecesFor(LayerRange layers, const stage::Stage& stage,
                                                   const PullKv& pull) const {
  std::vector<KvPiece> pieces;
  if (pull.first_token == pull.end_token) return pieces;
  std::vector<KvHolder> holders;
  for (const KvSource& source : pull.sources) {
    const bool near = source.from.host_id == plane_->self().host_id;
    holders.push_back({source.layers, source.rank, near});
  }
  const auto [first, end] = stage.kv_heads();
  MR_ASSIGN_OR_RETURN(const std::vector<KvPiece> cover,
                      CoverKv({layers, first, end, pull.first_token, pull.end_token}, holders,
                              stage.model_kv_heads()));
  const size_t unit = stage.KvBytes({{layers.begin, layers.begin + 1}, first, first + 1, 0, 1});
  for (const KvPiece& piece : cover) {
    for (const KvBox& box : SplitKv(piece.box, unit)) pieces.push_back({piece.source, box});
  }
  return pieces;
}

void KvExchange::Pull(LayerRange layers, std::shared_ptr<stage::Stage> stage, const PullKv& pull,
                      std::function<void(PullDone)> done) {
  Mailbox& puller = pull.background ? background_puller_ : puller_;
  puller.Put([this, layers, stage = std::move(stage), pull, done = std::move(done)] {
    PullDone result{.transfer = pull.transfer};
    const Time start = clock_.Now();
    if (!stage) {
      result.status = FailedPrecondition("the pipeline's weights were unloaded");
    } else {
      auto pieces = PiecesFor(layers, *stage, pull);
      result.status =
          pieces.ok() ? PullPieces(*stage, pull, *pieces, result.bytes) : pieces.status();
      if (result.status.ok()) PullActivations(layers, *stage, pull, result.bytes);
      result.activations = stage->HoldsActivations(pull.pipeline, layers.end, pull.blocks,
                                                   pull.first_token, pull.end_token);
    }
    result.seconds = (clock_.Now() - start).seconds();
    {
      MutexLock lock(mutex_);
      ++(result.status.ok() ? counters_.pulled : counters_.failed);
      counters_.pulled_bytes += static_cast<uint64_t>(result.bytes);
    }
    done(std::move(result));
  });
}

// The export message may still be on its way to the source. Waits a moment if so.
bool KvExchange::MayBeExportedSoon(const Status& status, Time deadline) const {
  if (status.code() != StatusCode::kNotFound || clock_.Now() >= deadline) return false;
  std::this_thread::sleep_for(kExportPoll);
  return true;
}

Status KvExchange::CopyLocal(stage::Stage& stage, const PullKv& pull, const KvPiece& piece) {
  std::vector<std::byte> bytes;
  MR_RETURN_IF_ERROR(Read(pull.sources[piece.source].handle, piece.box, [&](size_t size) {
    bytes.resize(size);
    return std::span(bytes);
  }));
  {
    MutexLock lock(mutex_);
    counters_.copied_bytes += bytes.size();
  }
  return stage.WriteKv(pull.pipeline, piece.box, pull.blocks, bytes);
}

// A failure is not reported here: Pull checks afterwards whether the stage has the activations.
void KvExchange::PullActivations(LayerRange layers, stage::Stage& stage, const PullKv& pull,
                                 int64_t& bytes) {
  const auto activations = ActivationsToPull(layers, pull, Incarnation(plane_->self().incarnation));
  if (!activations) return;
  const int tokens = std::max(1, static_cast<int>(kPullChunkBytes / stage.row_bytes()));
  std::vector<KvPiece> pieces;
  for (KvPiece piece = *activations; piece.box.first_token < activations->box.end_token;) {
    piece.box.end_token = std::min(piece.box.first_token + tokens, activations->box.end_token);
    pieces.push_back(piece);
    piece.box.first_token = piece.box.end_token;
  }
  (void)PullPieces(stage, pull, pieces, bytes);
}

Status KvExchange::PullPieces(stage::Stage& stage, const PullKv& pull,
                              const std::vector<KvPiece>& pieces, int64_t& bytes) {
  const Time deadline = clock_.Now() + kExportDelayMax;
  std::vector<KvPiece> remote;
  for (const KvPiece& piece : pieces) {
    if (!IsLocal(pull.sources[piece.source])) {
      remote.push_back(piece);
      continue;
    }
    Status copied;
    do {
      copied = CopyLocal(stage, pull, piece);
    } while (MayBeExportedSoon(copied, deadline));
    MR_RETURN_IF_ERROR(copied);
  }
  PullSteps steps{.pace = pull.background ? PullPace::kBackground : PullPace::kFast};
  steps.order = [&](size_t i) {
    const KvSource& source = pull.sources[remote[i].source];
    return PullOrder{DataAddress(source.from), Encode(KvRequest{source.handle, remote[i].box}),
                     stage.KvBytes(remote[i].box)};
  };
  steps.arrived = [&](size_t i, const Status& status,
                      std::span<const std::byte> part) -> Result<bool> {
    if (MayBeExportedSoon(status, deadline)) return true;
    MR_RETURN_IF_ERROR(status);
    MR_RETURN_IF_ERROR(stage.WriteKv(pull.pipeline, remote[i].box, pull.blocks, part));
    bytes += std::ssize(part);
    return false;
  };
  return PullParts(*plane_, remote.size(), steps);
}

}  // namespace millrace::cluster
