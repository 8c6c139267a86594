#include "cluster/kv_exchange.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"

namespace millrace::cluster {
namespace {

using engine::KvBox;

// The order to expose travels by another connection than the pull and may come a moment later.
constexpr Duration kExposeDelayMax = Duration::Seconds(2);
constexpr auto kExposePoll = std::chrono::milliseconds(2);
constexpr Duration kPieceLimit = Duration::Seconds(10);
constexpr uint32_t kRequestMagic = 0x4b56504c;  // "KVPL"

struct WireRequest {
  uint32_t magic = kRequestMagic;
  int32_t numbers[6] = {};  // layers, heads, tokens: begin and end of each
  uint32_t zero = 0;
  uint64_t lane = 0, generation = 0;
  uint8_t nonce[16] = {};
};
static_assert(sizeof(WireRequest) == 64);

}  // namespace

std::vector<std::byte> EncodePullRequest(const KvHandle& handle, const KvBox& box) {
  WireRequest wire;
  const int32_t numbers[6] = {box.layers.begin, box.layers.end,  box.first_head,
                              box.end_head,     box.first_token, box.end_token};
  std::memcpy(wire.numbers, numbers, sizeof numbers);
  wire.lane = handle.lane.value();
  wire.generation = handle.generation;
  std::memcpy(wire.nonce, handle.nonce.data(), sizeof wire.nonce);
  std::vector<std::byte> bytes(sizeof wire);
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

Result<std::pair<KvHandle, KvBox>> DecodePullRequest(std::span<const std::byte> bytes) {
  WireRequest wire;
  if (bytes.size() != sizeof wire) {
    return InvalidArgument(fmt::format("a pull request of {} bytes", bytes.size()));
  }
  std::memcpy(&wire, bytes.data(), sizeof wire);
  const int32_t* n = wire.numbers;
  if (wire.magic != kRequestMagic || wire.zero != 0 || n[0] < 0 || n[2] < 0 || n[4] < 0 ||
      n[1] <= n[0] || n[3] <= n[2] || n[5] <= n[4]) {
    return InvalidArgument("a pull request that names no box");
  }
  KvHandle handle{.lane = LaneId(wire.lane), .generation = wire.generation};
  std::memcpy(handle.nonce.data(), wire.nonce, sizeof wire.nonce);
  return std::pair(handle, KvBox{{n[0], n[1]}, n[2], n[3], n[4], n[5]});
}

KvExchange::KvExchange(HeadsOf heads_of, const Clock& clock)
    : heads_of_(std::move(heads_of)), clock_(clock) {}

KvExchange::~KvExchange() = default;

void KvExchange::Expose(LayerRange layers, std::shared_ptr<engine::Stage> stage,
                        const ExposeKv& kv) {
  const Time now = clock_.Now();
  std::lock_guard lock(mutex_);
  std::erase_if(exposed_, [&](const auto& e) { return e.second.until < now; });
  if (exposed_.size() >= kExposedMax || !stage) {
    ++counters_.refused;
    return;
  }
  exposed_[kv.handle.generation] = {std::move(stage), layers, kv, now + kv.lease};
}

void KvExchange::Release(const KvHandle& handle) {
  std::lock_guard lock(mutex_);
  exposed_.erase(handle.generation);
}

void KvExchange::LaneClosed(LaneId lane) {
  std::lock_guard lock(mutex_);
  std::erase_if(exposed_, [&](const auto& e) { return e.second.kv.handle.lane == lane; });
}

KvExchangeCounters KvExchange::counters() const {
  std::lock_guard lock(mutex_);
  KvExchangeCounters counters = counters_;
  counters.exposed = exposed_.size();
  return counters;
}

Result<net::PullSource> KvExchange::Serve(std::span<const std::byte> request) {
  auto asked = DecodePullRequest(request);
  auto served =
      asked.ok() ? ServeBox(asked->first, asked->second) : Result<net::PullSource>(asked.status());
  if (served.ok()) return served;
  std::lock_guard lock(mutex_);
  ++counters_.refused;
  return served;
}

// What `handle` exposes, if the box is within it.
Result<KvExchange::Exposed> KvExchange::Find(const KvHandle& handle, const KvBox& box) const {
  Exposed found;
  {
    std::lock_guard lock(mutex_);
    const auto it = exposed_.find(handle.generation);
    const bool known = it != exposed_.end() && it->second.kv.handle.lane == handle.lane &&
                       CRYPTO_memcmp(it->second.kv.handle.nonce.data(), handle.nonce.data(),
                                     handle.nonce.size()) == 0;
    if (!known || it->second.until < clock_.Now()) return NotFound("no such KV is held here");
    found = it->second;
  }
  // A later round of the same move may be asked for before its order is here.
  if (box.end_token > found.kv.tokens) return NotFound("so much of it is not held here yet");
  const auto heads = found.stage->kv_heads();
  if (box.layers.begin < found.layers.begin || box.layers.end > found.layers.end ||
      box.first_head < heads.first || box.end_head > heads.second) {
    return InvalidArgument("a box outside what this worker holds");
  }
  return found;
}

Result<net::PullSource> KvExchange::ServeBox(const KvHandle& handle, const KvBox& box) {
  MR_ASSIGN_OR_RETURN(const Exposed found, Find(handle, box));
  const size_t size = found.stage->KvBytes(box);
  if (size > kKvBoxBytesMax) return InvalidArgument("a box larger than a pull may be");
  const StagingPool::Buffer buffer = staging_.Take(*plane_, size);
  MR_RETURN_IF_ERROR(found.stage->ReadKv(handle.lane, box, found.kv.blocks, buffer.bytes));
  {
    std::lock_guard lock(mutex_);
    ++counters_.served;
    counters_.served_bytes += size;
  }
  return net::PullSource(net::PullSegments{{buffer.bytes}, buffer.pin});
}

// Each layer and head that is needed from one source, in boxes no larger than a pull may be.
Result<std::vector<KvExchange::Piece>> KvExchange::PiecesFor(LayerRange layers,
                                                             const engine::Stage& stage,
                                                             const PullKv& pull) const {
  std::vector<Piece> pieces;
  const auto [first_head, end_head] = stage.kv_heads();
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    int head = first_head;
    while (head < end_head) {
      const KvSource* from = nullptr;
      int end = head;
      for (const KvSource& source : pull.sources) {
        if (layer < source.layers.begin || layer >= source.layers.end) continue;
        const auto its = heads_of_(source.rank);
        if (its.first > head || std::min(its.second, end_head) <= end) continue;
        from = &source;
        end = std::min(its.second, end_head);
      }
      if (from == nullptr) {
        return NotFound(fmt::format("nobody holds layer {}, head {} of it", layer, head));
      }
      const KvBox one{{layer, layer + 1}, head, end, pull.first_token, pull.first_token + 1};
      const auto tokens_max =
          static_cast<int>(std::max<size_t>(1, kKvBoxBytesMax / stage.KvBytes(one)));
      for (int token = pull.first_token; token < pull.end_token; token += tokens_max) {
        const int until = std::min(pull.end_token, token + tokens_max);
        Piece* last = pieces.empty() ? nullptr : &pieces.back();
        const bool joins = last != nullptr && last->source == from &&
                           last->box.layers.end == layer && last->box.first_head == head &&
                           last->box.end_head == end && last->box.first_token == token &&
                           last->box.end_token == until;
        KvBox wider = joins ? last->box : KvBox{};
        wider.layers.end = layer + 1;
        if (joins && stage.KvBytes(wider) <= kKvBoxBytesMax) {
          last->box = wider;
        } else {
          pieces.push_back({from, {{layer, layer + 1}, head, end, token, until}});
        }
      }
      head = end;
    }
  }
  return pieces;
}

void KvExchange::Pull(LayerRange layers, std::shared_ptr<engine::Stage> stage, const PullKv& pull,
                      std::function<void(PullDone)> done) {
  puller_.Put([this, layers, stage = std::move(stage), pull, done = std::move(done)] {
    PullDone result{.transfer = pull.transfer};
    const Time start = clock_.Now();
    if (!stage) {
      result.status = FailedPrecondition("the lane's weights were unloaded");
    } else {
      auto pieces = PiecesFor(layers, *stage, pull);
      result.status =
          pieces.ok() ? PullPieces(*stage, pull, *pieces, result.bytes) : pieces.status();
    }
    result.seconds = (clock_.Now() - start).seconds();
    {
      std::lock_guard lock(mutex_);
      ++(result.status.ok() ? counters_.pulled : counters_.failed);
      counters_.pulled_bytes += static_cast<uint64_t>(result.bytes);
    }
    done(std::move(result));
  });
}

// A plan may leave layers where they are: their KV goes from lane to lane without a wire.
bool KvExchange::IsHere(const KvSource& source) const {
  return source.from.incarnation.value() == plane_->self().incarnation;
}

Status KvExchange::CopyHere(const Piece& piece, std::span<std::byte> out) {
  MR_ASSIGN_OR_RETURN(const Exposed found, Find(piece.source->handle, piece.box));
  MR_RETURN_IF_ERROR(
      found.stage->ReadKv(piece.source->handle.lane, piece.box, found.kv.blocks, out));
  std::lock_guard lock(mutex_);
  counters_.copied_bytes += out.size();
  return OkStatus();
}

Status KvExchange::PullPieces(engine::Stage& stage, const PullKv& pull,
                              const std::vector<Piece>& pieces, int64_t& bytes) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable ended;
    std::vector<std::pair<size_t, Status>> arrived;
  };
  const auto shared = std::make_shared<Shared>();
  std::map<size_t, std::shared_ptr<std::vector<std::byte>>> buffers;
  const auto begin = [&](size_t i) {
    auto buffer = std::make_shared<std::vector<std::byte>>(stage.KvBytes(pieces[i].box));
    buffers[i] = buffer;
    const WorkerAddress& from = pieces[i].source->from;
    if (IsHere(*pieces[i].source)) {
      Status copied = CopyHere(pieces[i], *buffer);
      std::lock_guard lock(shared->mutex);
      shared->arrived.emplace_back(i, std::move(copied));
      return;
    }
    plane_->Pull({from.data, from.incarnation.value(), from.host_id, from.process_id},
                 EncodePullRequest(pieces[i].source->handle, pieces[i].box), *buffer, kPieceLimit,
                 [shared, buffer, i](Status status, uint64_t got) {
                   if (status.ok() && got != buffer->size()) status = DataLoss("a short pull");
                   std::lock_guard lock(shared->mutex);
                   shared->arrived.emplace_back(i, std::move(status));
                   shared->ended.notify_one();
                 });
  };
  const Time patience = clock_.Now() + kExposeDelayMax;
  size_t next = 0;
  Status failed;
  while (next < pieces.size() || !buffers.empty()) {
    while (failed.ok() && next < pieces.size() && buffers.size() < kPullsInFlight) begin(next++);
    if (buffers.empty()) break;
    std::unique_lock lock(shared->mutex);
    shared->ended.wait(lock, [&] { return !shared->arrived.empty(); });
    const auto arrived = std::exchange(shared->arrived, {});
    lock.unlock();
    for (const auto& [i, status] : arrived) {
      const auto buffer = std::move(buffers.extract(i).mapped());
      if (status.code() == StatusCode::kNotFound && failed.ok() && clock_.Now() < patience) {
        std::this_thread::sleep_for(kExposePoll);
        begin(i);
        continue;
      }
      if (!status.ok()) {
        if (failed.ok()) failed = status;
        continue;
      }
      if (!failed.ok()) continue;
      failed = stage.WriteKv(pull.lane, pieces[i].box, pull.blocks, *buffer);
      if (!IsHere(*pieces[i].source)) bytes += std::ssize(*buffer);
    }
  }
  return failed;
}

}  // namespace millrace::cluster
