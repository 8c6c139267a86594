#include "net/data/outgoing_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "net/data/crc32c.h"
#include "net/data/little_endian.h"

namespace millrace::net {
namespace {

constexpr size_t kDirectPieceBytes = 256 << 10;  // read in one go on the loop's thread
constexpr size_t kDiscardBytes = 64 << 10;
constexpr size_t kSegmentBytes = 16;  // on the wire

Status Foul(const char* what) { return InvalidArgument(fmt::format("the owner sent {}", what)); }

}  // namespace

OutgoingLink::OutgoingLink(LinkHost& host, PeerAddress peer)
    : Link(host), peer_(std::move(peer)), messages_(host.options.limits) {
  pulls_max_ = host.options.limits.pulls_per_peer;
}

// ---- any thread

Status OutgoingLink::Push(MessageClass message_class, std::span<const std::byte> key,
                          const Payload& payload) {
  {
    std::lock_guard lock(queue_mutex_);
    if (!end_.ok()) return end_;
    MR_RETURN_IF_ERROR(messages_.Push(message_class, key, payload));
  }
  host_.counters.Add(&DataPlaneStats::messages_sent);
  host_.counters.Add(&DataPlaneStats::message_bytes_sent, payload.size());
  // A small message goes out on this thread; a large one would keep its sender from its work.
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
    std::unique_lock lock(queue_mutex_);
    const bool news = room_.wait_until(
        lock, until, [&] { return !end_.ok() || messages_.HasRoom(message_class, cost); });
    if (!news) return {StatusCode::kDeadlineExceeded, status.message()};
  }
}

bool OutgoingLink::NextFrame(OutFrame& out) {
  std::lock_guard lock(queue_mutex_);
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

void OutgoingLink::PushControl(const FrameHeader& header, std::vector<std::byte> payload) {
  {
    std::lock_guard lock(queue_mutex_);
    Control c{header, std::make_shared<const std::vector<std::byte>>(std::move(payload))};
    c.header.payload_bytes = static_cast<uint32_t>(c.payload->size());
    control_.push_back(std::move(c));
  }
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
    return Unavailable("the peer has started anew");
  }
  answer_ = {.nonce = RandomNonce(),
             .expected_incarnation = peer_.incarnation,
             .self = host_.self,
             .user_id = host_.user_id};
  SendHello(EncodeAnswer(answer_, *challenge_, secret()));
  return OkStatus();
}

Status OutgoingLink::OnHello(std::span<const std::byte> message) {
  if (!challenge_) return AnswerChallenge(message);
  MR_ASSIGN_OR_RETURN(const Welcome welcome,
                      DecodeWelcome(message, answer_, *challenge_, secret()));
  if (welcome.self.incarnation != peer_.incarnation) return Unavailable("not the peer we meant");
  direct_ = host_.options.direct_reads && welcome.cookie_address != 0 &&
            welcome.self.host_id == host_.self.host_id && welcome.user_id == host_.user_id &&
            CanReadMemory(welcome.self.process_id, welcome.cookie_address, welcome.cookie);
  direct_process_id_ = welcome.self.process_id;
  pulls_max_ = std::min<size_t>(pulls_max_, welcome.pulls);
  {
    std::lock_guard lock(queue_mutex_);
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
      Request(wire_id, it->second, direct_);
    }
  }
  return OkStatus();
}

void OutgoingLink::OnClosed(const Status& reason) {
  std::deque<Control> control;
  size_t dropped = 0;
  {
    std::lock_guard lock(queue_mutex_);
    end_ = Unavailable(reason.message());
    control.swap(control_);
    dropped = messages_.messages();
  }
  room_.notify_all();
  host_.counters.Add(&DataPlaneStats::messages_dropped, dropped);
  while (!pulls_.empty()) Finish(pulls_.begin()->first, reason);
  host_.OnOutgoingEnd(*this, reason);
}

// ---- pulls

void OutgoingLink::StartPull(PullId id, std::vector<std::byte> request,
                             std::span<std::byte> destination, Time deadline, PullCallback done) {
  Status refused;
  if (closed()) refused = Unavailable("the connection has ended");
  if (pulls_.size() >= pulls_max_) {
    refused = ResourceExhausted(fmt::format("{} pulls from this peer are under way", pulls_max_));
  }
  if (!refused.ok()) {
    host_.counters.Add(&DataPlaneStats::pulls_failed);
    done(refused, 0);
    return;
  }
  const uint64_t wire_id = next_wire_id_++;
  Pull& pull = pulls_[wire_id];
  pull.id = id;
  pull.request = std::move(request);
  pull.destination = destination;
  pull.deadline = deadline;
  pull.done = std::move(done);
  pull.timer = host_.loop.At(deadline, [this, id] {
    EndPull(id, {StatusCode::kDeadlineExceeded, "the pull took too long"});
  });
  if (ready()) {
    Request(wire_id, pull, direct_);
  } else {
    unsent_.push_back(wire_id);  // the hello tells whether its memory can be read
  }
}

void OutgoingLink::Request(uint64_t wire_id, const Pull& pull, bool direct) {
  const Duration left = pull.deadline - host_.loop.Now();
  const PullHead head{
      .limit_ms = static_cast<uint32_t>(std::clamp<int64_t>(left.ns / 1'000'000, 1, UINT32_MAX)),
      .direct = direct};
  std::vector<std::byte> payload(kPullHeadBytes);
  EncodePullHead(head, std::span<std::byte, kPullHeadBytes>(payload));
  payload.insert(payload.end(), pull.request.begin(), pull.request.end());
  PushControl({.type = FrameType::kPull, .id = wire_id, .value = pull.destination.size()},
              std::move(payload));
}

bool OutgoingLink::EndPull(PullId id, const Status& status) {
  const auto it = std::ranges::find_if(pulls_, [&](const auto& p) { return p.second.id == id; });
  if (it == pulls_.end()) return false;
  PushControl({.type = FrameType::kPullCancel, .id = it->first}, {});
  Finish(it->first, status);
  return true;
}

void OutgoingLink::Finish(uint64_t wire_id, const Status& status) {
  auto node = pulls_.extract(wire_id);
  Pull& pull = node.mapped();
  host_.loop.Cancel(pull.timer);
  if (status.ok()) {
    host_.counters.Add(&DataPlaneStats::pulls_ok);
    host_.counters.Add(&DataPlaneStats::pull_bytes_received, pull.received);
    if (pull.direct) {
      host_.counters.Add(&DataPlaneStats::pulls_direct);
      host_.counters.Add(&DataPlaneStats::direct_bytes, pull.received);
    }
  } else {
    host_.counters.Add(&DataPlaneStats::pulls_failed);
  }
  pull.done(status, pull.received);
}

Status OutgoingLink::OnDirect(const FrameHeader& header, Pull& pull) {
  if (!direct_ || pull.direct || pull.received > 0) return Foul("segments out of turn");
  if (header.value > pull.destination.size()) return Foul("more than was asked for");
  if (small_.size() % kSegmentBytes != 0) return Foul("segments cut short");
  uint64_t sum = 0;
  for (size_t at = 0; at < small_.size(); at += kSegmentBytes) {
    const MemorySegment s{LoadLe<uint64_t>(&small_[at]), LoadLe<uint64_t>(&small_[at + 8])};
    if (s.bytes > header.value - sum) return Foul("segments longer than they should be");
    sum += s.bytes;
    pull.segments.push_back(s);
  }
  if (sum != header.value) return Foul("segments shorter than they should be");
  pull.total = header.value;
  pull.direct = true;
  ReadDirect(header.id);
  return OkStatus();
}

// A piece at a time, so that other connections have their turn.
void OutgoingLink::ReadDirect(uint64_t wire_id) {
  const auto it = pulls_.find(wire_id);
  if (it == pulls_.end()) return;
  Pull& pull = it->second;
  const size_t n = std::min<uint64_t>(kDirectPieceBytes, pull.total - pull.received);
  const std::span<std::byte> place = pull.destination.subspan(pull.received, n);
  if (const Status s = ReadMemory(direct_process_id_, pull.segments, pull.cursor, place); !s.ok()) {
    return AskAgainWithoutDirect(wire_id, s);
  }
  pull.checksum = Crc32c(place, pull.checksum);
  pull.received += n;
  if (pull.received == pull.total) return FinishDirect(wire_id, pull);
  host_.loop.Post([self = shared_from_this(), this, wire_id] { ReadDirect(wire_id); });
}

void OutgoingLink::FinishDirect(uint64_t wire_id, Pull& pull) {
  if (pull.received < pull.total || !pull.expected) return;
  PushControl({.type = FrameType::kPullRelease, .id = wire_id}, {});
  if (*pull.expected == pull.checksum) return Finish(wire_id, OkStatus());
  host_.counters.Add(&DataPlaneStats::checksum_errors);
  Finish(wire_id, DataLoss("what was read from the owner's memory is not what it holds"));
}

void OutgoingLink::AskAgainWithoutDirect(uint64_t wire_id, const Status& why) {
  direct_ = false;
  MR_LOG(warn, "pulls from {} go through the socket from now on: {}", Printable(peer_.endpoint),
         Printable(why.message()));
  PushControl({.type = FrameType::kPullCancel, .id = wire_id}, {});
  auto node = pulls_.extract(wire_id);
  node.key() = next_wire_id_++;
  Pull& pull = node.mapped();
  pull.segments.clear();
  pull.cursor = {};
  pull.received = pull.total = 0;
  pull.checksum = 0;
  pull.direct = false;
  pull.expected.reset();
  const auto inserted = pulls_.insert(std::move(node));
  Request(inserted.position->first, inserted.position->second, /*direct=*/false);
}

// ---- frames

Status OutgoingLink::OnFrameStart(const FrameHeader& h) {
  small_.clear();
  if (h.type == FrameType::kCredit) return OkStatus();
  if (h.id == 0 || h.id >= next_wire_id_) return Foul("an answer to no pull");
  switch (h.type) {
    case FrameType::kPullData: {
      const auto it = pulls_.find(h.id);
      if (it == pulls_.end()) return OkStatus();  // over here; thrown away
      const Pull& pull = it->second;
      if (pull.direct || h.value != pull.received || h.payload_bytes == 0 ||
          h.payload_bytes > pull.destination.size() - pull.received) {
        return Foul("data that does not fit");
      }
      return OkStatus();
    }
    case FrameType::kPullEnd:
    case FrameType::kPullDirect: small_.resize(h.payload_bytes); return OkStatus();
    case FrameType::kPullSum: return OkStatus();
    default: return Foul("a frame that only a reader sends");
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
      std::lock_guard lock(queue_mutex_);
      MR_RETURN_IF_ERROR(messages_.AddCredit(h.message_class, h.value));
    }
    Flush();
    return OkStatus();
  }
  const auto it = pulls_.find(h.id);
  if (it == pulls_.end()) return OkStatus();
  Pull& pull = it->second;
  if (h.type == FrameType::kPullData) {
    pull.received += h.payload_bytes;
  } else if (h.type == FrameType::kPullDirect) {
    return OnDirect(h, pull);
  } else if (h.type == FrameType::kPullSum) {
    if (!pull.direct || pull.expected || h.value > UINT32_MAX) return Foul("a sum out of turn");
    pull.expected = static_cast<uint32_t>(h.value);
    FinishDirect(h.id, pull);
  } else {
    return OnPullEnd(h);
  }
  return OkStatus();
}

Status OutgoingLink::OnPullEnd(const FrameHeader& h) {
  const Pull& pull = pulls_.at(h.id);
  if (h.small > static_cast<uint16_t>(StatusCode::kInternal)) return Foul("an unknown status");
  const auto code = static_cast<StatusCode>(h.small);
  if (code == StatusCode::kOk && (pull.direct || pull.received != h.value)) {
    return Foul("an end before the end");
  }
  const std::string message(reinterpret_cast<const char*>(small_.data()), small_.size());
  Finish(h.id, code == StatusCode::kOk ? OkStatus() : Status(code, Printable(message)));
  return OkStatus();
}

}  // namespace millrace::net
