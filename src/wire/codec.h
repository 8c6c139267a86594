// core/worker_messages.h as bytes and back. Decoded messages are completely checked: counts,
// ranges, indices, sizes of texts, enumerations; an error is kInvalidArgument and names the field.
//
// Encoder and Decoder keep their memory from call to call, so that a decode step allocates only
// what core's struct needs. One thread at a time for each object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "core/worker_messages.h"
#include "wire/limits.h"

namespace millrace::wire {

// Sent with every message. The incarnation is always the worker's: the sender's in messages to a
// controller and in heartbeats, the receiver's in messages to a worker.
struct Envelope {
  Term term;
  Incarnation incarnation;
  uint64_t sequence = 0;  // incremented on each stream
  friend bool operator==(const Envelope&, const Envelope&) = default;
};

template <typename Message>
struct Received {
  Envelope envelope;
  Message message;
};

class Encoder {
 public:
  Encoder();
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // The bytes are valid until the next call. kTooLarge beyond kMessageBytesMax.
  Result<std::span<const uint8_t>> Encode(const Envelope& envelope, const ToController& message);
  Result<std::span<const uint8_t>> Encode(const Envelope& envelope, const ToWorker& message);
  Result<std::span<const uint8_t>> Encode(const Envelope& envelope, const PeerMessage& message);
  Result<std::span<const uint8_t>> Encode(const Envelope& envelope, const Heartbeat& message);
  Result<std::span<const uint8_t>> Encode(const Envelope& envelope, const Echo& message);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Result<Received<ToController>> DecodeToController(std::span<const uint8_t> bytes);
  Result<Received<ToWorker>> DecodeToWorker(std::span<const uint8_t> bytes);
  Result<Received<PeerMessage>> DecodePeerMessage(std::span<const uint8_t> bytes);
  Result<Received<Heartbeat>> DecodeHeartbeat(std::span<const uint8_t> bytes);
  Result<Received<Echo>> DecodeEcho(std::span<const uint8_t> bytes);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

// One per thread, so that its memory is reused.
inline Encoder& ThreadEncoder() {
  thread_local Encoder encoder;
  return encoder;
}
inline Decoder& ThreadDecoder() {
  thread_local Decoder decoder;
  return decoder;
}

}  // namespace millrace::wire
