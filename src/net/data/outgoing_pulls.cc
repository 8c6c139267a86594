// The pulls that an OutgoingLink asks for; the rest of the class is in outgoing_link.cc.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "net/data/outgoing_link.h"

namespace millrace::net {
namespace {

Status ProtocolError(const char* what) {
  return InvalidArgument(fmt::format("the owner sent {}", what));
}

}  // namespace

void OutgoingLink::StartPull(PullId id, std::vector<std::byte> request,
                             std::span<std::byte> destination, Time deadline, PullCallback done) {
  Status refused;
  if (closed()) refused = Unavailable("the connection has ended");
  if (pulls_.size() >= pulls_max_) {
    refused = ResourceExhausted(fmt::format("{} pulls from this peer are in progress", pulls_max_));
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
    Request(wire_id, pull);
  } else {
    unsent_.push_back(wire_id);  // the hello shows whether its memory can be read
  }
}

void OutgoingLink::Request(uint64_t wire_id, Pull& pull) {
  pull.may_map = may_map_;
  const Duration left = pull.deadline - host_.loop.Now();
  const PullHead head{
      .limit_ms = static_cast<uint32_t>(std::clamp<int64_t>(left.ns / 1'000'000, 1, UINT32_MAX)),
      .direct = may_map_};
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
      host_.counters.Add(&DataPlaneStats::pulls_mapped);
    }
  } else {
    host_.counters.Add(&DataPlaneStats::pulls_failed);
  }
  pull.done(status, pull.received);
}

Status OutgoingLink::OnShared(const FrameHeader& header, Pull& pull) {
  if (!pull.may_map || pull.direct || pull.received > 0)
    return ProtocolError("segments out of order");
  if (header.value > pull.destination.size()) return ProtocolError("more than was requested");
  MR_ASSIGN_OR_RETURN(const auto segments, DecodeSegments(small_, header.value));
  auto direct = DirectRead::Open(*mapped_, segments);
  if (direct.ok()) {
    pull.direct = std::move(*direct);
    ReadDirect(header.id);
  } else if (direct.status().code() == StatusCode::kUnavailable) {
    AskAgain(header.id, direct.status());
  } else {
    EndPull(pull.id, direct.status());
  }
  return OkStatus();
}

// Reads a limited amount at a time, so that other connections have their turn.
void OutgoingLink::ReadDirect(uint64_t wire_id) {
  const auto it = pulls_.find(wire_id);
  if (it == pulls_.end()) return;
  Pull& pull = it->second;
  pull.received += pull.direct->Read(pull.destination.subspan(pull.received));
  if (pull.direct->left() == 0) return FinishDirect(wire_id, pull);
  host_.loop.Post([self = shared_from_this(), this, wire_id] { ReadDirect(wire_id); });
}

Status OutgoingLink::OnSum(const FrameHeader& header, Pull& pull) {
  if (!pull.direct || pull.direct->expected_sum || header.value > UINT32_MAX) {
    return ProtocolError("a sum out of order");
  }
  pull.direct->expected_sum = static_cast<uint32_t>(header.value);
  FinishDirect(header.id, pull);
  return OkStatus();
}

void OutgoingLink::FinishDirect(uint64_t wire_id, Pull& pull) {
  if (pull.direct->left() > 0 || !pull.direct->expected_sum) return;
  Release(wire_id);
  if (*pull.direct->expected_sum == pull.direct->sum()) return Finish(wire_id, OkStatus());
  host_.counters.Add(&DataPlaneStats::checksum_errors);
  Finish(wire_id,
         DataLoss("the bytes read from the owner's memory do not have the owner's checksum"));
}

// Not at once: a reader of one block often asks for the next, and one write serves both.
void OutgoingLink::Release(uint64_t wire_id) {
  AddControl({.type = FrameType::kPullRelease, .id = wire_id}, {});
  host_.loop.Post([self = shared_from_this(), this] { FlushLater(); });
}

// The peer's memory cannot be mapped: from now on it sends the bytes.
void OutgoingLink::AskAgain(uint64_t wire_id, const Status& why) {
  may_map_ = false;
  MR_LOG(warn, "{}: pulls go through the socket from now on: {}", Printable(peer_.endpoint),
         Printable(why.message()));
  PushControl({.type = FrameType::kPullCancel, .id = wire_id}, {});
  auto node = pulls_.extract(wire_id);
  node.key() = next_wire_id_++;
  const auto inserted = pulls_.insert(std::move(node));
  Request(inserted.position->first, inserted.position->second);
}

Status OutgoingLink::OnPullEnd(const FrameHeader& h) {
  const Pull& pull = pulls_.at(h.id);
  if (h.small > static_cast<uint16_t>(StatusCode::kInternal))
    return ProtocolError("an unknown status");
  const auto code = static_cast<StatusCode>(h.small);
  if (code == StatusCode::kOk && (pull.direct || pull.received != h.value)) {
    return ProtocolError("an end before all bytes");
  }
  const std::string message(reinterpret_cast<const char*>(small_.data()), small_.size());
  Finish(h.id, code == StatusCode::kOk ? OkStatus() : Status(code, Printable(message)));
  return OkStatus();
}

}  // namespace millrace::net
