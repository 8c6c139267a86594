// The pulls that an IncomingLink serves; the rest of the class is in incoming_link.cc.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "net/data/incoming_link.h"

namespace millrace::net {
namespace {

constexpr size_t kSumPieceBytes = 256 << 10;
// Up to this size the sum is sent with the segments: one message instead of two, and the serving
// thread has often just written the bytes. Above it, the reader copies while the owner sums.
constexpr uint64_t kSumAtOnceBytes = 2 << 20;
constexpr size_t kEndTextBytesMax = 512;
constexpr size_t kControlSpare = 64;  // for frames that are not ends of pulls

}  // namespace

// One frame from each in turn.
bool IncomingLink::NextOfPulls(OutFrame& out) {
  for (size_t looked = turn_.size(); looked > 0; --looked) {
    std::shared_ptr<ServedPull> pull = std::move(turn_.front());
    turn_.pop_front();
    const bool found = pull->Next(out);
    if (pull->sent()) {
      host_.counters.Add(&DataPlaneStats::pulls_served);
      AddEnd(pull->id(), OkStatus(), pull->total());
      pulls_.erase(pull->id());
      out.owners[1] = std::move(pull);  // freed without the lock, like all user objects
    } else {
      if (const auto chunk = pull->NextToMake()) MakeChunk(pull, *chunk);
      turn_.push_back(std::move(pull));
    }
    if (found) {
      host_.counters.Add(&DataPlaneStats::pull_bytes_served, out.header.payload_bytes);
      return true;
    }
  }
  return false;
}

Status IncomingLink::StartPull(const FrameHeader& h) {
  MR_ASSIGN_OR_RETURN(const PullHead head, DecodePullHead(request_));
  if (head.direct && !direct_) {
    return InvalidArgument("the sender asked to map memory that it cannot map");
  }
  const auto pull = std::make_shared<ServedPull>(h.id, h.value, head.direct);
  const size_t pulls_max = host_.options.limits.pulls_per_peer;
  bool taken = false;
  {
    MutexLock lock(queue_mutex_);
    if (!host_.events.on_pull) {
      AddEnd(h.id, Unimplemented("this process does not serve pulls"), 0);
    } else if (std::max(pulls_.size(), handling_) >= pulls_max) {
      AddEnd(h.id, ResourceExhausted("too many pulls at once"), 0);
    } else {
      pulls_.emplace(h.id, pull);
      ++handling_;
      taken = true;
    }
    // Refusals are replies too; a peer that does not read them may not continue to ask.
    if (control_.size() > 2 * pulls_max + kControlSpare) {
      return InvalidArgument("the sender sent pulls without reading the replies");
    }
  }
  if (!taken) {
    Flush();
    return OkStatus();
  }
  if (head.direct) WatchLeases();
  std::vector<std::byte> request(request_.begin() + kPullHeadBytes, request_.end());
  host_.pool().Run([self = shared_from_this(), this, id = h.id, request = std::move(request)] {
    OnSource(id, host_.events.on_pull(*peer_, request));
  });
  return OkStatus();
}

void IncomingLink::OnSource(uint64_t id, Result<PullSource> source) {
  {
    MutexLock lock(queue_mutex_);
    --handling_;
  }
  if (!source.ok()) return EndPull(id, source.status());
  std::optional<SharedPlaces> shared;
  if (const auto* segments = std::get_if<PullSegments>(&*source)) {
    if (segments->pin == nullptr) {
      MR_LOG(error, "a pull failed: its handler named memory without a pin");
      return EndPull(id, Internal("the owner named memory that is not pinned"));
    }
    if (direct_) shared = host_.shared.Find(segments->segments);
  }
  std::shared_ptr<ServedPull> pull;
  Status status;
  {
    MutexLock lock(queue_mutex_);
    const auto it = pulls_.find(id);
    if (it == pulls_.end()) return;  // cancelled, or the reader is gone
    pull = it->second;
    status = pull->Begin(std::move(*source), std::move(shared), host_.loop.Now());
  }
  if (!status.ok()) return EndPull(id, status);
  if (pull->direct()) {
    OfferDirect(pull);
  } else {
    BeginSending(pull);
    // The loop sends large pulls: the thread that calls handlers is free for the next one.
    if (pull->total() > kFrameBytesMax) return FlushLater();
  }
  Flush();
}

void IncomingLink::BeginSending(const std::shared_ptr<ServedPull>& pull) {
  MutexLock lock(queue_mutex_);
  if (!pulls_.contains(pull->id())) return;
  if (pull->sent()) {  // it has no bytes
    host_.counters.Add(&DataPlaneStats::pulls_served);
    AddEnd(pull->id(), OkStatus(), 0);
    pulls_.erase(pull->id());
  } else {
    turn_.push_back(pull);
    if (const auto chunk = pull->NextToMake()) MakeChunk(pull, *chunk);
  }
}

void IncomingLink::OfferDirect(const std::shared_ptr<ServedPull>& pull) {
  const bool at_once = pull->total() <= kSumAtOnceBytes;
  if (at_once) pull->AddToSum(pull->total());
  MutexLock lock(queue_mutex_);
  if (!pulls_.contains(pull->id())) return;
  for (const auto& memory : pull->shared().holders) shared_told_.insert(memory->number());
  AddControl({.type = FrameType::kPullShared, .id = pull->id(), .value = pull->total()},
             EncodeSegments(pull->shared().segments));
  if (at_once) {
    AddSum(*pull);
  } else {
    host_.loop.Post([self = shared_from_this(), this, pull] { SumDirect(pull); });
  }
}

void IncomingLink::MakeChunk(std::shared_ptr<ServedPull> pull, ServedPull::Chunk chunk) {
  host_.pool().Run([self = shared_from_this(), this, pull = std::move(pull), chunk] {
    const std::shared_ptr<std::byte[]> bytes(new std::byte[chunk.bytes]);
    const std::span<std::byte> out(bytes.get(), chunk.bytes);
    const Status status = pull->producer().produce(chunk.offset, out);
    if (!status.ok()) return EndPull(pull->id(), status);
    {
      MutexLock lock(queue_mutex_);
      pull->Made(Payload(bytes, out));
      if (!pulls_.contains(pull->id())) return;
      if (const auto next = pull->NextToMake()) MakeChunk(pull, *next);
    }
    Flush();
  });
}

// One timer for all: a timer per pull would have to be set on the loop's thread, which sleeps.
void IncomingLink::WatchLeases() {
  if (lease_timer_) return;
  const Duration lease = host_.options.limits.direct_lease;
  const Duration period{lease.ns / 2 + 1};
  lease_timer_ = host_.loop.At(host_.loop.Now() + period, [this, lease] {
    lease_timer_.reset();
    std::vector<uint64_t> over;
    bool any = false;
    {
      MutexLock lock(queue_mutex_);
      for (const auto& [id, pull] : pulls_) {
        any |= pull->may_map();
        if (pull->direct() && pull->begun_at() + lease <= host_.loop.Now()) over.push_back(id);
      }
    }
    if (any) WatchLeases();
    for (const uint64_t id : over) {
      EndPull(id, {StatusCode::kDeadlineExceeded, "the segments were not read in time"});
    }
  });
}

// Piece by piece; the reader copies meanwhile.
void IncomingLink::SumDirect(const std::shared_ptr<ServedPull>& pull) {
  if (closed()) return;
  if (!pull->AddToSum(kSumPieceBytes)) {
    host_.loop.Post([self = shared_from_this(), this, pull] { SumDirect(pull); });
    return;
  }
  {
    MutexLock lock(queue_mutex_);
    if (!pulls_.contains(pull->id())) return;
    AddSum(*pull);
  }
  Flush();
}

void IncomingLink::AddSum(const ServedPull& pull) {
  host_.counters.Add(&DataPlaneStats::pulls_served);
  host_.counters.Add(&DataPlaneStats::pull_bytes_served, pull.total());
  AddControl({.type = FrameType::kPullSum, .id = pull.id(), .value = pull.sum()}, {});
}

void IncomingLink::SharedGone(uint64_t number) {
  {
    MutexLock lock(queue_mutex_);
    if (shared_told_.erase(number) == 0) return;
    AddControl({.type = FrameType::kSharedGone, .id = number}, {});
  }
  Flush();
}

void IncomingLink::AddControl(const FrameHeader& header, std::vector<std::byte> payload) {
  Control c{header, std::make_shared<const std::vector<std::byte>>(std::move(payload))};
  c.header.payload_bytes = static_cast<uint32_t>(c.payload->size());
  control_.push_back(std::move(c));
}

void IncomingLink::AddEnd(uint64_t id, const Status& status, uint64_t bytes) {
  const std::string text = status.message().substr(0, kEndTextBytesMax);
  const auto raw = std::as_bytes(std::span(text.data(), text.size()));
  AddControl({.type = FrameType::kPullEnd,
              .small = static_cast<uint16_t>(status.code()),
              .id = id,
              .value = bytes},
             {raw.begin(), raw.end()});
}

void IncomingLink::EndPull(uint64_t id, const Status& status) {
  {
    MutexLock lock(queue_mutex_);
    if (!pulls_.contains(id)) return;
    AddEnd(id, status, 0);
  }
  DropPull(id);
  Flush();
}

void IncomingLink::DropPull(uint64_t id) {
  std::shared_ptr<ServedPull> pull;  // freed without the lock
  {
    MutexLock lock(queue_mutex_);
    const auto it = pulls_.find(id);
    if (it == pulls_.end()) return;
    pull = std::move(it->second);
    pulls_.erase(it);
    std::erase(turn_, pull);
  }
}

}  // namespace millrace::net
