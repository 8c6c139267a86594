#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/mutex.h"
#include "net/data/in_process_core.h"
#include "net/data/message_queue.h"

namespace millrace::net {
namespace {

// The receiver holds this instead of the sender's owner; dropping it returns the sender's credit.
struct HeldMessage {
  HeldMessage(std::shared_ptr<InProcessChannel> c, MessageClass k, size_t n, Payload p)
      : channel(std::move(c)), message_class(k), cost(n), payload(std::move(p)) {}
  ~HeldMessage() { channel->Release(message_class, cost); }

  const std::shared_ptr<InProcessChannel> channel;
  const MessageClass message_class;
  const size_t cost;
  const Payload payload;
};

}  // namespace

InProcessChannel::InProcessChannel(PeerAddress from, std::shared_ptr<InProcessCore> to,
                                   DataPlaneLimits sender)
    : from_(std::move(from)), to_(std::move(to)), limits_(sender) {}

bool InProcessChannel::HasRoom(MessageClass message_class, size_t cost) const {
  const Line& line = lines_[Index(message_class)];
  return line.waiting.empty() || line.bytes + cost <= limits_.queue_bytes[Index(message_class)];
}

Status InProcessChannel::Push(MessageClass message_class, std::span<const std::byte> key,
                              Payload payload) {
  if (key.size() > limits_.key_bytes) {
    return InvalidArgument(
        fmt::format("a key has {} bytes, the limit is {}", key.size(), limits_.key_bytes));
  }
  const size_t cost = key.size() + payload.size() + kMessageCost;
  const size_t largest = MessageBytesMax(to_->limits.window_bytes[Index(message_class)]);
  if (cost > largest) {
    return InvalidArgument(
        fmt::format("a message has {} bytes, the limit is {}", payload.size(), largest));
  }
  {
    MutexLock lock(mutex_);
    if (closed_) return Unavailable("the peer is gone");
    if (!HasRoom(message_class, cost)) {
      return ResourceExhausted(fmt::format("{} bytes wait for this peer, the limit is {}",
                                           lines_[Index(message_class)].bytes,
                                           limits_.queue_bytes[Index(message_class)]));
    }
    Line& line = lines_[Index(message_class)];
    line.bytes += cost;
    line.waiting.push_back({{key.begin(), key.end()}, std::move(payload), cost});
  }
  DeliverSoon();
  return OkStatus();
}

bool InProcessChannel::WaitForRoom(MessageClass message_class, size_t bytes, Time deadline) {
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline.ns)};
  MutexLock lock(mutex_);
  return room_.wait_until(
      lock, until, [&]() MR_REQUIRES(mutex_) { return closed_ || HasRoom(message_class, bytes); });
}

void InProcessChannel::Release(MessageClass message_class, size_t cost) {
  {
    MutexLock lock(mutex_);
    Line& line = lines_[Index(message_class)];
    line.in_use -= cost;
    line.stalled = false;
    if (line.waiting.empty()) return;
  }
  DeliverSoon();
}

size_t InProcessChannel::Close() {
  std::array<std::deque<Message>, kMessageClasses> dropped;  // freed without the lock
  size_t n = 0;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (size_t c = 0; c < lines_.size(); ++c) {
      n += lines_[c].waiting.size();
      dropped[c].swap(lines_[c].waiting);
      lines_[c].bytes = 0;
    }
  }
  room_.notify_all();
  return n;
}

void InProcessChannel::DeliverSoon() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(delivering_, true)) return;
  }
  to_->loop.Post([self = shared_from_this()] { self->Deliver(); });
}

bool InProcessChannel::Take(Message& out, MessageClass& message_class) {
  MutexLock lock(mutex_);
  for (size_t c = 0; c < lines_.size(); ++c) {
    Line& line = lines_[c];
    if (line.waiting.empty()) continue;
    if (line.in_use + line.waiting.front().cost > to_->limits.window_bytes[c]) {
      if (!std::exchange(line.stalled, true)) to_->counters.Add(&DataPlaneStats::stalls);
      continue;
    }
    out = std::move(line.waiting.front());
    line.waiting.pop_front();
    line.bytes -= out.cost;
    line.in_use += out.cost;
    message_class = static_cast<MessageClass>(c);
    return true;
  }
  delivering_ = false;
  return false;
}

void InProcessChannel::Deliver() {
  Message message;
  MessageClass message_class = MessageClass::kDecode;
  while (Take(message, message_class)) {
    room_.notify_all();
    to_->counters.Add(&DataPlaneStats::messages_received);
    to_->counters.Add(&DataPlaneStats::message_bytes_received, message.payload.size());
    const auto bytes = message.payload.bytes();
    auto held = std::make_shared<HeldMessage>(shared_from_this(), message_class, message.cost,
                                              std::move(message.payload));
    if (to_->events.on_message) {
      to_->events.on_message(from_, message_class, message.key, Payload(std::move(held), bytes));
    }
  }
}

}  // namespace millrace::net
