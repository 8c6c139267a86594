#include "wire/codec.h"

#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include <array>
#include <vector>

#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

// Holds the generated messages of a large decode step; larger ones use the heap, which is released
// with the next message.
constexpr size_t kArenaBytes = 256 * 1024;
constexpr size_t kBytesKept = size_t{1} << 20;

google::protobuf::ArenaOptions OptionsOver(std::vector<char>& block) {
  google::protobuf::ArenaOptions options;
  options.initial_block = block.data();
  options.initial_block_size = block.size();
  return options;
}

}  // namespace

// Of Encoder and Decoder, and so in no unnamed namespace.
class Scratch {
 public:
  template <typename Message>
  Message& Fresh() {
    arena_.Reset();
    return *google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }

 private:
  std::vector<char> block_ = std::vector<char>(kArenaBytes);
  google::protobuf::Arena arena_{OptionsOver(block_)};
};

namespace {

Status TooLarge(size_t bytes) {
  return {StatusCode::kTooLarge,
          fmt::format("a message has {} bytes, the limit is {}", bytes, kMessageBytesMax)};
}

// The core message inside a generated one.
Status Body(const proto::ToController& from, ToController& out) { return FromProto(from, out); }
Status Body(const proto::ToWorker& from, ToWorker& out) { return FromProto(from, out); }
Status Body(const proto::PeerMessage& from, PeerMessage& out) { return FromProto(from, out); }
Status Body(const proto::HeartbeatMessage& from, Heartbeat& out) {
  if (!from.has_heartbeat()) return Missing("heartbeat");
  MR_RETURN_WITHIN("heartbeat", FromProto(from.heartbeat(), out));
  return OkStatus();
}
Status Body(const proto::EchoMessage& from, Echo& out) {
  if (!from.has_echo()) return Missing("echo");
  MR_RETURN_WITHIN("echo", FromProto(from.echo(), out));
  return OkStatus();
}

template <typename Proto, typename Message>
Result<Received<Message>> Decode(Scratch& scratch, std::span<const uint8_t> bytes) {
  if (bytes.size() > kMessageBytesMax) return TooLarge(bytes.size());
  Proto& message = scratch.Fresh<Proto>();
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("the bytes are not a message of this protocol");
  }
  if (!message.has_envelope()) return Missing("envelope");
  Received<Message> received;
  MR_RETURN_IF_ERROR(FromProto(message.envelope(), received.envelope));
  MR_RETURN_IF_ERROR(Body(message, received.message));
  return received;
}

}  // namespace

struct Encoder::Memory {
  Scratch scratch;
  std::vector<uint8_t> bytes;

  template <typename Proto>
  Result<std::span<const uint8_t>> Write(const Envelope& envelope, Proto& message) {
    ToProto(envelope, *message.mutable_envelope());
    const size_t size = message.ByteSizeLong();
    if (size > kMessageBytesMax) return TooLarge(size);
    if (bytes.size() < size) {
      bytes.resize(size);
    } else if (bytes.size() > kBytesKept && size <= kBytesKept) {
      bytes = std::vector<uint8_t>(kBytesKept);
    }
    message.SerializeWithCachedSizesToArray(bytes.data());
    return std::span<const uint8_t>(bytes.data(), size);
  }
};

Encoder::Encoder() : memory_(std::make_unique<Memory>()) {}
Encoder::~Encoder() = default;

Result<std::span<const uint8_t>> Encoder::Encode(const Envelope& envelope,
                                                 const ToController& message) {
  auto& out = memory_->scratch.Fresh<proto::ToController>();
  ToProto(message, out);
  return memory_->Write(envelope, out);
}

Result<std::span<const uint8_t>> Encoder::Encode(const Envelope& envelope,
                                                 const ToWorker& message) {
  auto& out = memory_->scratch.Fresh<proto::ToWorker>();
  ToProto(message, out);
  return memory_->Write(envelope, out);
}

Result<std::span<const uint8_t>> Encoder::Encode(const Envelope& envelope,
                                                 const PeerMessage& message) {
  auto& out = memory_->scratch.Fresh<proto::PeerMessage>();
  ToProto(message, out);
  return memory_->Write(envelope, out);
}

Result<std::span<const uint8_t>> Encoder::Encode(const Envelope& envelope,
                                                 const Heartbeat& message) {
  auto& out = memory_->scratch.Fresh<proto::HeartbeatMessage>();
  ToProto(message, *out.mutable_heartbeat());
  return memory_->Write(envelope, out);
}

Result<std::span<const uint8_t>> Encoder::Encode(const Envelope& envelope, const Echo& message) {
  auto& out = memory_->scratch.Fresh<proto::EchoMessage>();
  ToProto(message, *out.mutable_echo());
  return memory_->Write(envelope, out);
}

struct Decoder::Memory {
  Scratch scratch;
};

Decoder::Decoder() : memory_(std::make_unique<Memory>()) {}
Decoder::~Decoder() = default;

Result<Received<ToController>> Decoder::DecodeToController(std::span<const uint8_t> bytes) {
  return Decode<proto::ToController, ToController>(memory_->scratch, bytes);
}
Result<Received<ToWorker>> Decoder::DecodeToWorker(std::span<const uint8_t> bytes) {
  return Decode<proto::ToWorker, ToWorker>(memory_->scratch, bytes);
}
Result<Received<PeerMessage>> Decoder::DecodePeerMessage(std::span<const uint8_t> bytes) {
  return Decode<proto::PeerMessage, PeerMessage>(memory_->scratch, bytes);
}
Result<Received<Heartbeat>> Decoder::DecodeHeartbeat(std::span<const uint8_t> bytes) {
  return Decode<proto::HeartbeatMessage, Heartbeat>(memory_->scratch, bytes);
}
Result<Received<Echo>> Decoder::DecodeEcho(std::span<const uint8_t> bytes) {
  return Decode<proto::EchoMessage, Echo>(memory_->scratch, bytes);
}

}  // namespace millrace::wire
