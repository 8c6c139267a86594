#include "net/data/frame.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "net/data/crc32c.h"
#include "net/data/little_endian.h"

namespace millrace::net {
namespace {

// Offsets in the header.
constexpr size_t kTypeAt = 0, kClassAt = 1, kSmallAt = 2, kBytesAt = 4, kIdAt = 8, kValueAt = 16,
                 kPayloadSumAt = 24, kHeaderSumAt = 28;

// Flags of a pull.
constexpr uint32_t kDirect = 2;
// Readers of earlier releases set these flags where they can read the owner's memory by address, or
// have an RDMA card. They are ignored, because these readers also accept bytes that are sent. This
// release never sets them.
constexpr uint32_t kReserved = 1 | 4;
constexpr uint8_t kReservedType = 8;

uint32_t HeaderSum(const HeaderBytes& raw, uint32_t number) {
  return Crc32c(std::span(raw).first(kHeaderSumAt), number);
}

bool HasPayload(FrameType type) {
  switch (type) {
    case FrameType::kMessage:
    case FrameType::kMore:
    case FrameType::kPull:
    case FrameType::kPullData:
    case FrameType::kPullEnd:
    case FrameType::kPullShared: return true;
    case FrameType::kCredit:
    case FrameType::kPullCancel:
    case FrameType::kPullSum:
    case FrameType::kPullRelease:
    case FrameType::kSharedGone: return false;
  }
  return false;
}

// The checks of a header that need no earlier frame.
Status CheckHeader(uint8_t type, uint8_t message_class, const FrameHeader& h) {
  if (type < static_cast<uint8_t>(FrameType::kMessage) ||
      type > static_cast<uint8_t>(FrameType::kSharedGone) || type == kReservedType) {
    return InvalidArgument(fmt::format("a frame of unknown type {}", type));
  }
  if (message_class >= kMessageClasses) {
    return InvalidArgument(fmt::format("a frame of unknown class {}", message_class));
  }
  if (h.payload_bytes > kFrameBytesMax) {
    return InvalidArgument(fmt::format("a frame with {} payload bytes, the limit is {}",
                                       h.payload_bytes, kFrameBytesMax));
  }
  if (h.payload_bytes > 0 && !HasPayload(h.type)) {
    return InvalidArgument(fmt::format("a frame of type {} with a payload", type));
  }
  return OkStatus();
}

}  // namespace

HeaderBytes EncodeHeader(const FrameHeader& header, uint32_t payload_checksum, uint32_t number) {
  HeaderBytes raw;
  StoreLe(&raw[kTypeAt], static_cast<uint8_t>(header.type));
  StoreLe(&raw[kClassAt], static_cast<uint8_t>(header.message_class));
  StoreLe(&raw[kSmallAt], header.small);
  StoreLe(&raw[kBytesAt], header.payload_bytes);
  StoreLe(&raw[kIdAt], header.id);
  StoreLe(&raw[kValueAt], header.value);
  StoreLe(&raw[kPayloadSumAt], payload_checksum);
  StoreLe(&raw[kHeaderSumAt], HeaderSum(raw, number));
  return raw;
}

std::span<std::byte> FrameDecoder::Place() {
  if (header_done_ < kFrameHeaderBytes) {
    place_ = std::span(raw_).subspan(header_done_);
  } else {
    place_ = sink_.PlaceFor(header_, payload_done_);
    MR_CHECK(!place_.empty() && place_.size() <= header_.payload_bytes - payload_done_);
  }
  return place_;
}

Status FrameDecoder::Advance(size_t bytes) {
  MR_CHECK(bytes <= place_.size());
  const std::span<const std::byte> got = place_.first(bytes);
  place_ = {};
  if (header_done_ < kFrameHeaderBytes) {
    header_done_ += bytes;
    return header_done_ == kFrameHeaderBytes ? HeaderComplete() : OkStatus();
  }
  checksum_ = Crc32c(got, checksum_);
  payload_done_ += bytes;
  return payload_done_ == header_.payload_bytes ? FrameComplete() : OkStatus();
}

Status FrameDecoder::Feed(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> place = Place();
    const size_t n = std::min(place.size(), bytes.size());
    std::memcpy(place.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    MR_RETURN_IF_ERROR(Advance(n));
  }
  return OkStatus();
}

Status FrameDecoder::HeaderComplete() {
  if (LoadLe<uint32_t>(&raw_[kHeaderSumAt]) != HeaderSum(raw_, static_cast<uint32_t>(frames_))) {
    corrupted_ = true;
    return DataLoss(fmt::format("the header of frame {} is damaged or out of place", frames_));
  }
  const auto type = LoadLe<uint8_t>(&raw_[kTypeAt]);
  const auto message_class = LoadLe<uint8_t>(&raw_[kClassAt]);
  header_ = {.type = static_cast<FrameType>(type),
             .message_class = static_cast<MessageClass>(message_class),
             .small = LoadLe<uint16_t>(&raw_[kSmallAt]),
             .payload_bytes = LoadLe<uint32_t>(&raw_[kBytesAt]),
             .id = LoadLe<uint64_t>(&raw_[kIdAt]),
             .value = LoadLe<uint64_t>(&raw_[kValueAt])};
  expected_checksum_ = LoadLe<uint32_t>(&raw_[kPayloadSumAt]);
  MR_RETURN_IF_ERROR(CheckHeader(type, message_class, header_));
  MR_RETURN_IF_ERROR(sink_.OnFrameStart(header_));
  payload_done_ = 0;
  checksum_ = 0;
  return header_.payload_bytes == 0 ? FrameComplete() : OkStatus();
}

Status FrameDecoder::FrameComplete() {
  if (checksum_ != expected_checksum_) {
    corrupted_ = true;
    return DataLoss(fmt::format("the payload of frame {} is damaged", frames_));
  }
  ++frames_;
  header_done_ = 0;
  return sink_.OnFrameEnd(header_);
}

void EncodePullHead(const PullHead& head, std::span<std::byte, kPullHeadBytes> out) {
  StoreLe(&out[0], head.limit_ms);
  StoreLe(&out[4], head.direct ? kDirect : uint32_t{0});
}

Result<PullHead> DecodePullHead(std::span<const std::byte> payload) {
  if (payload.size() < kPullHeadBytes) return InvalidArgument("a truncated pull");
  const auto flags = LoadLe<uint32_t>(&payload[4]);
  if ((flags & ~(kDirect | kReserved)) != 0) {
    return InvalidArgument(fmt::format("a pull with unknown flags {:#x}", flags));
  }
  return PullHead{.limit_ms = LoadLe<uint32_t>(&payload[0]), .direct = (flags & kDirect) != 0};
}

}  // namespace millrace::net
