#include "net/data/message_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::net {
namespace {

// A part smaller than this share of the window is sent only if it completes a message: many small
// frames would cost more than waiting for credit.
constexpr size_t kPartOfWindow = 16;

}  // namespace

bool MessageQueue::HasRoom(MessageClass message_class, size_t bytes) const {
  const Line& line = lines_[Index(message_class)];
  return line.waiting.empty() || line.bytes + bytes <= limits_.queue_bytes[Index(message_class)];
}

Status MessageQueue::Push(MessageClass message_class, std::span<const std::byte> key,
                          Payload payload) {
  Line& line = lines_[Index(message_class)];
  if (key.size() > limits_.key_bytes) {
    return InvalidArgument(
        fmt::format("a key has {} bytes, the limit is {}", key.size(), limits_.key_bytes));
  }
  auto message = std::make_shared<Message>();
  message->key.assign(key.begin(), key.end());
  message->payload = std::move(payload);
  const size_t cost = Cost(*message);
  const size_t window = line.window > 0 ? line.window : limits_.window_bytes[Index(message_class)];
  if (cost > MessageBytesMax(window)) {
    return InvalidArgument(fmt::format("a message has {} bytes, the limit is {}",
                                       message->payload.size(), MessageBytesMax(window)));
  }
  if (!HasRoom(message_class, cost)) {
    return ResourceExhausted(fmt::format("{} bytes wait for this peer, the limit is {}", line.bytes,
                                         limits_.queue_bytes[Index(message_class)]));
  }
  line.bytes += cost;
  line.waiting.push_back(std::move(message));
  return OkStatus();
}

Status MessageQueue::SetWindows(const std::array<uint64_t, kMessageClasses>& window_bytes) {
  for (size_t c = 0; c < lines_.size(); ++c) {
    Line& line = lines_[c];
    for (const auto& message : line.waiting) {
      if (Cost(*message) > MessageBytesMax(window_bytes[c])) {
        return FailedPrecondition(fmt::format("a message of {} bytes waits, the peer accepts {}",
                                              message->payload.size(),
                                              MessageBytesMax(window_bytes[c])));
      }
    }
    line.window = line.credit = window_bytes[c];
  }
  return OkStatus();
}

Status MessageQueue::AddCredit(MessageClass message_class, uint64_t bytes) {
  Line& line = lines_[Index(message_class)];
  if (bytes > line.window - line.credit) return InvalidArgument("credit that was never used");
  line.credit += bytes;
  line.stalled = false;
  return OkStatus();
}

bool MessageQueue::Next(OutFrame& out) {
  for (size_t c = 0; c < lines_.size(); ++c) {
    if (NextOf(static_cast<MessageClass>(c), lines_[c], out)) return true;
  }
  return false;
}

bool MessageQueue::NextOf(MessageClass message_class, Line& line, OutFrame& out) {
  if (line.waiting.empty()) return false;
  const std::shared_ptr<Message>& message = line.waiting.front();
  const size_t head = message->begun ? 0 : message->key.size();
  const size_t head_cost = message->begun ? 0 : message->key.size() + kMessageCost;
  const size_t left = message->payload.size() - message->sent_bytes;
  const size_t wanted = std::min(left, kFrameBytesMax - head);
  const size_t least = std::min(wanted, line.window / kPartOfWindow);
  if (line.credit < head_cost + least || line.window == 0) {
    if (!line.stalled && line.window > 0) ++stalls_;
    line.stalled = true;
    return false;
  }
  const size_t n = std::min(wanted, line.credit - head_cost);
  out.header = {.type = message->begun ? FrameType::kMore : FrameType::kMessage,
                .message_class = message_class,
                .small = static_cast<uint16_t>(head),
                .payload_bytes = static_cast<uint32_t>(head + n),
                .id = line.next_id,
                .value = message->begun ? message->sent_bytes : message->payload.size()};
  out.parts.clear();
  if (head > 0) out.parts.push_back(message->key);
  if (n > 0) out.parts.push_back(message->payload.bytes().subspan(message->sent_bytes, n));
  out.owners = {message, nullptr};
  line.credit -= head_cost + n;
  line.bytes -= head_cost + n;
  message->sent_bytes += n;
  message->begun = true;
  if (message->sent_bytes == message->payload.size()) {
    line.waiting.pop_front();
    ++line.next_id;
  }
  return true;
}

size_t MessageQueue::messages() const {
  size_t n = 0;
  for (const Line& line : lines_) n += line.waiting.size();
  return n;
}

}  // namespace millrace::net
