// The frames of a data connection, and the decoder, which takes them in pieces of any size.
// docs/formats/data-plane.md describes the bytes. Pure; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "net/data/data_plane.h"

namespace millrace::net {

// Payload bytes of one frame. A waiting frame waits for at most one frame of this size.
inline constexpr size_t kFrameBytesMax = 256 << 10;
inline constexpr size_t kFrameHeaderBytes = 32;

enum class FrameType : uint8_t {
  kMessage = 1,     // first part: `small` key bytes, then payload; `value` = payload bytes in all
  kMore = 2,        // a further part; `value` = its offset
  kCredit = 3,      // `value` more bytes of this class may be sent
  kPull = 4,        // `id`, `value` = bytes the destination holds; payload: PullHead, request
  kPullData = 5,    // `id`, `value` = offset
  kPullEnd = 6,     // `id`, `small` = status code, `value` = bytes in all; payload: its message
  kPullCancel = 7,  // `id`
  // 8 named segments by their address. It stays reserved, and is refused like any unknown type.
  kPullSum = 9,       // `id`, `value` = checksum of a direct pull's bytes
  kPullRelease = 10,  // `id`: the reader no longer uses the segments
  kPullShared = 11,   // `id`, `value` = bytes in all; payload: segments of shared memory
  kSharedGone = 12    // `id`: number of shared memory that the owner has released
  // 13 belonged to RDMA. It stays reserved, and is refused like any unknown type.
};

struct FrameHeader {
  FrameType type = FrameType::kMessage;
  MessageClass message_class = MessageClass::kDecode;
  uint16_t small = 0;
  uint32_t payload_bytes = 0;
  uint64_t id = 0;  // of a pull; for messages the sequence number in its class
  uint64_t value = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

// `number` is the count of earlier frames in this direction. A frame that is repeated, omitted or
// moved therefore has the wrong checksum.
HeaderBytes EncodeHeader(const FrameHeader& header, uint32_t payload_checksum, uint32_t number);

// Receives the frames of one connection. Errors end the connection.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A valid header. Its payload has not arrived yet.
  virtual Status OnFrameStart(const FrameHeader& header) = 0;
  // The destination of the payload's byte `at` and the following ones: at least one byte, not
  // beyond the payload. Called again for every piece, so the destination may change between pieces.
  virtual std::span<std::byte> PlaceFor(const FrameHeader& header, size_t at) = 0;
  // The payload is complete and its checksum is right.
  virtual Status OnFrameEnd(const FrameHeader& header) = 0;
};

class FrameDecoder {
 public:
  explicit FrameDecoder(FrameSink& sink) : sink_(sink) {}

  // The next bytes may be written here directly, followed by Advance. Never empty.
  std::span<std::byte> Place();
  Status Advance(size_t bytes);
  // The same for bytes that are elsewhere in memory.
  Status Feed(std::span<const std::byte> bytes);

  // Bytes needed before anything further happens: the rest of a payload, or one.
  size_t Awaited() const {
    return header_done_ < kFrameHeaderBytes ? 1 : header_.payload_bytes - payload_done_;
  }
  uint64_t frames() const { return frames_; }
  // Whether the error was a wrong checksum.
  bool corrupted() const { return corrupted_; }

 private:
  Status HeaderComplete();
  Status FrameComplete();

  FrameSink& sink_;
  FrameHeader header_;
  HeaderBytes raw_ = {};
  size_t header_done_ = 0;
  size_t payload_done_ = 0;
  uint32_t expected_checksum_ = 0;
  uint32_t checksum_ = 0;
  std::span<std::byte> place_;  // returned by Place
  uint64_t frames_ = 0;
  bool corrupted_ = false;
};

// At the start of a kPull frame's payload.
struct PullHead {
  uint32_t limit_ms = 0;
  bool direct = false;  // the reader may be able to map what the owner shares
};
inline constexpr size_t kPullHeadBytes = 8;
void EncodePullHead(const PullHead& head, std::span<std::byte, kPullHeadBytes> out);
Result<PullHead> DecodePullHead(std::span<const std::byte> payload);

}  // namespace millrace::net
