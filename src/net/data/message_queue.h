// The messages that wait for one peer. Chooses the next part to send by urgency and by the
// receiver's credit. Also defines what both ends count as credit. Pure; owned by a link or a plane;
// one thread at a time (callers lock).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "net/data/data_plane.h"
#include "net/data/frame.h"
#include "net/payload.h"

namespace millrace::net {

// A frame to be sent. `parts` and the bytes that they view live as long as `owners`.
struct OutFrame {
  FrameHeader header;
  std::vector<std::span<const std::byte>> parts;
  std::array<std::shared_ptr<const void>, 2> owners;
  bool more = false;  // another frame is certainly ready
};

// Charged for each message in addition to its bytes, so that empty ones are bounded too.
inline constexpr size_t kMessageCost = 256;

// The largest message for a window. Half of it, because up to a quarter may be credit that the
// receiver has not returned yet.
constexpr size_t MessageBytesMax(size_t window_bytes) { return window_bytes / 2; }
constexpr size_t CreditReturnBytes(size_t window_bytes) { return window_bytes / 4; }
inline constexpr size_t kWindowBytesMin = 16 << 10;

class MessageQueue {
 public:
  explicit MessageQueue(const DataPlaneLimits& limits) : limits_(limits) {}

  // Errors: kInvalidArgument or kResourceExhausted.
  Status Push(MessageClass message_class, std::span<const std::byte> key, Payload payload);
  bool HasRoom(MessageClass message_class, size_t bytes) const;

  // Sets what the receiver allows. An error when a waiting message is larger.
  Status SetWindows(const std::array<uint64_t, kMessageClasses>& window_bytes);
  // An error when more credit is returned than was used.
  Status AddCredit(MessageClass message_class, uint64_t bytes);

  // The next part to send; false when none waits or may be sent. `out` may be reused.
  bool Next(OutFrame& out);

  size_t messages() const;  // waiting, whole or in part
  uint64_t stalls() const { return stalls_; }

 private:
  struct Message {
    std::vector<std::byte> key;
    Payload payload;
    size_t sent_bytes = 0;
    bool begun = false;
  };
  struct Line {
    std::deque<std::shared_ptr<Message>> waiting;
    size_t bytes = 0;   // waiting, including costs
    size_t credit = 0;  // remaining
    size_t window = 0;
    uint64_t next_id = 0;
    bool stalled = false;
  };

  static size_t Cost(const Message& m) { return m.key.size() + m.payload.size() + kMessageCost; }
  bool NextOf(MessageClass message_class, Line& line, OutFrame& out);

  const DataPlaneLimits limits_;
  std::array<Line, kMessageClasses> lines_;
  uint64_t stalls_ = 0;
};

}  // namespace millrace::net
