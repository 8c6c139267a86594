#include "net/data/outgoing_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace millrace::net {
namespace {

constexpr size_t kDiscardBytes = 64 << 10;

Status OwnerError(const char* what) {
  return InvalidArgument(fmt::format("the owner sent {}", what));
}

}  // namespace

OutgoingLink::OutgoingLink(LinkHost& host, PeerAddress peer)
    : Link(host), peer_(std::move(peer)), messages_(host.options.limits) {
  pulls_max_ = host.options.limits.pulls_per_peer;
}

// ---- any thread

Status OutgoingLink::Push(MessageClass message_class, std::span<const std::byte> key,
                          const Payload& payload) {
  {
    MutexLock lock(queue_mutex_);
    if (!end_.ok()) return end_;
    MR_RETURN_IF_ERROR(messages_.Push(message_class, key, payload));
  }
  host_.counters.Add(&DataPlaneStats::messages_sent);
  host_.counters.Add(&DataPlaneStats::message_bytes_sent, payload.size());
  // A small message is sent on this thread; a large one would delay its sender.
  if (payload.size() <= kFrameBytesMax / 4) {
    Flush();
  } else {
    FlushLater();
  }
  return OkStatus();
}

Status OutgoingLink::PushWithin(Time deadline, MessageClass message_class,
                                std::span<const std::byte> key, const Payload& payload) {
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline.ns)};
  while (true) {
    const Status status = Push(message_class, key, payload);
    if (status.code() != StatusCode::kResourceExhausted) return status;
    const size_t cost = key.size() + payload.size() + kMessageCost;
    MutexLock lock(queue_mutex_);
    const bool output = room_.wait_until(lock, until, [&]() MR_REQUIRES(queue_mutex_) {
      return !end_.ok() || messages_.HasRoom(message_class, cost);
    });
    if (!output) return {StatusCode::kDeadlineExceeded, status.message()};
  }
}

bool OutgoingLink::NextFrame(OutFrame& out) {
  MutexLock lock(queue_mutex_);
  if (!control_.empty()) {
    Control& c = control_.front();
    out.header = c.header;
    out.parts.clear();
    if (!c.payload->empty()) out.parts.push_back(*c.payload);
    out.owners = {std::move(c.payload), nullptr};
    control_.pop_front();
    return true;
  }
  const uint64_t stalls = messages_.stalls();
  const bool any = messages_.Next(out);
  if (messages_.stalls() > stalls) {
    host_.counters.Add(&DataPlaneStats::stalls, messages_.stalls() - stalls);
  }
  if (any) room_.notify_all();
  return any;
}

void OutgoingLink::AddControl(const FrameHeader& header, std::vector<std::byte> payload) {
  MutexLock lock(queue_mutex_);
  Control c{header, std::make_shared<const std::vector<std::byte>>(std::move(payload))};
  c.header.payload_bytes = static_cast<uint32_t>(c.payload->size());
  control_.push_back(std::move(c));
}

void OutgoingLink::PushControl(const FrameHeader& header, std::vector<std::byte> payload) {
  AddControl(header, std::move(payload));
  Flush();
}

// ---- connecting

void OutgoingLink::Start() {
  if (closed()) return;
  EndWithin(host_.options.limits.connect_within, "the peer did not answer in time");
  if (IsNumeric(peer_.endpoint)) return Connect();
  host_.pool().Run([self = shared_from_this(), this] {
    auto socket = std::make_shared<Result<UniqueFd>>(StartConnect(peer_.endpoint));
    host_.loop.Post([self, this, socket] {
      if (closed()) return;
      if (!socket->ok()) return Close(socket->status());
      Adopt(std::move(**socket), StreamSide::kConnecting, /*connecting=*/true);
    });
  });
}

void OutgoingLink::Connect() {
  auto socket = StartConnect(peer_.endpoint);
  if (!socket.ok()) return Close(socket.status());
  Adopt(std::move(*socket), StreamSide::kConnecting, /*connecting=*/true);
}

Status OutgoingLink::AnswerChallenge(std::span<const std::byte> message) {
  MR_ASSIGN_OR_RETURN(challenge_, DecodeChallenge(message));
  if (challenge_->incarnation != peer_.incarnation) {
    host_.counters.Add(&DataPlaneStats::stale_refused);
    return Unavailable("the peer has restarted");
  }
  answer_ = {.nonce = RandomNonce(),
             .expected_incarnation = peer_.incarnation,
             .self = host_.self,
             .user_id = host_.user_id,
             .version = NewestCommonVersion(*challenge_)};
  SendHello(EncodeAnswer(answer_, *challenge_, secret()));
  return OkStatus();
}

Status OutgoingLink::OnHello(std::span<const std::byte> message) {
  if (!challenge_) return AnswerChallenge(message);
  MR_ASSIGN_OR_RETURN(const Welcome welcome,
                      DecodeWelcome(message, answer_, *challenge_, secret()));
  if (welcome.self.incarnation != peer_.incarnation)
    return Unavailable("a different process answers at the peer's address");
  mapped_.emplace(welcome.self.process_id, welcome.cookie);
  // Whether its shared memory can be mapped is checked when it names some.
  may_map_ = host_.options.direct_reads && welcome.shares_memory &&
             welcome.self.host_id == host_.self.host_id && welcome.user_id == host_.user_id;
  pulls_max_ = std::min<size_t>(pulls_max_, welcome.pulls);
  {
    MutexLock lock(queue_mutex_);
    for (uint64_t bytes : welcome.window_bytes) {
      if (bytes < kWindowBytesMin) return FailedPrecondition("the peer's window is too small");
    }
    MR_RETURN_IF_ERROR(messages_.SetWindows(welcome.window_bytes));
  }
  host_.counters.Add(&DataPlaneStats::connections_made);
  was_ready_ = true;
  SetReady();
  for (uint64_t wire_id : std::exchange(unsent_, {})) {
    if (const auto it = pulls_.find(wire_id); it != pulls_.end()) {
      Request(wire_id, it->second);
    }
  }
  return OkStatus();
}

void OutgoingLink::OnClosed(const Status& reason) {
  std::deque<Control> control;
  size_t dropped = 0;
  {
    MutexLock lock(queue_mutex_);
    end_ = Unavailable(reason.message());
    control.swap(control_);
    dropped = messages_.messages();
  }
  room_.notify_all();
  host_.counters.Add(&DataPlaneStats::messages_dropped, dropped);
  while (!pulls_.empty()) Finish(pulls_.begin()->first, reason);
  mapped_.reset();
  host_.OnOutgoingEnd(*this, reason);
}

// ---- frames

Status OutgoingLink::OnFrameStart(const FrameHeader& h) {
  small_.clear();
  if (h.type == FrameType::kCredit || h.type == FrameType::kSharedGone) return OkStatus();
  if (h.id == 0 || h.id >= next_wire_id_)
    return OwnerError("a reply to a pull that does not exist");
  switch (h.type) {
    case FrameType::kPullData: {
      const auto it = pulls_.find(h.id);
      if (it == pulls_.end()) return OkStatus();  // the pull has ended; discarded
      const Pull& pull = it->second;
      if (pull.direct || h.value != pull.received || h.payload_bytes == 0 ||
          h.payload_bytes > pull.destination.size() - pull.received) {
        return OwnerError("data that does not fit the destination");
      }
      return OkStatus();
    }
    case FrameType::kPullEnd:
    case FrameType::kPullShared: small_.resize(h.payload_bytes); return OkStatus();
    case FrameType::kPullSum: return OkStatus();
    default: return OwnerError("a frame that only a reader may send");
  }
}

std::span<std::byte> OutgoingLink::PlaceFor(const FrameHeader& h, size_t at) {
  const size_t rest = h.payload_bytes - at;
  if (h.type != FrameType::kPullData) return std::span(small_).subspan(at, rest);
  const auto it = pulls_.find(h.id);
  if (it != pulls_.end()) return it->second.destination.subspan(h.value + at, rest);
  discard_.resize(kDiscardBytes);
  return std::span(discard_).first(std::min(rest, kDiscardBytes));
}

Status OutgoingLink::OnFrameEnd(const FrameHeader& h) {
  if (h.type == FrameType::kCredit) {
    {
      MutexLock lock(queue_mutex_);
      MR_RETURN_IF_ERROR(messages_.AddCredit(h.message_class, h.value));
    }
    Flush();
    return OkStatus();
  }
  if (h.type == FrameType::kSharedGone) {
    if (mapped_) mapped_->Drop(h.id);
    return OkStatus();
  }
  const auto it = pulls_.find(h.id);
  if (it == pulls_.end()) return OkStatus();
  Pull& pull = it->second;
  switch (h.type) {
    case FrameType::kPullData: pull.received += h.payload_bytes; return OkStatus();
    case FrameType::kPullShared: return OnShared(h, pull);
    case FrameType::kPullSum: return OnSum(h, pull);
    default: return OnPullEnd(h);
  }
}

}  // namespace millrace::net
