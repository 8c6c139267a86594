// How two data planes prove to each other that they hold the cluster's token, before either accepts
// payload. The accepting side speaks first (Challenge), the connecting side answers (Answer), the
// accepting side confirms (Welcome). The token itself is never sent. Pure except for the random
// nonces, which are arguments; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/data/data_plane.h"

namespace millrace::net {

// A process speaks every version from the oldest to the newest. A connection uses the newest that
// both sides speak. The head of a hello and the form of a challenge are the same in all versions.
inline constexpr uint16_t kDataProtocolVersion = 5;
inline constexpr uint16_t kDataProtocolVersionOldest = 5;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;  // HMAC-SHA256
// Limit of one hello message, including its length field. Bounds the memory that a stranger can
// use.
inline constexpr size_t kHelloBytesMax = 1024;
inline constexpr size_t kHelloNameBytesMax = 255;

using Nonce = std::array<std::byte, kNonceBytes>;
Nonce RandomNonce();
uint64_t RandomIncarnation();  // never 0

struct Challenge {
  Nonce nonce = {};
  uint64_t incarnation = 0;  // of the accepting side
  uint16_t oldest = kDataProtocolVersionOldest, newest = kDataProtocolVersion;  // that it speaks
};
struct Answer {
  Nonce nonce = {};
  uint64_t expected_incarnation = 0;  // of the accepting side
  PeerAddress self;
  uint32_t user_id = 0;
  uint16_t version = kDataProtocolVersion;  // of this connection
};
// The connecting side's permissions, and how it can check that it reads the right memory.
struct Welcome {
  std::array<uint64_t, kMessageClasses> window_bytes = {};
  uint32_t pulls = 0;
  PeerAddress self;
  uint32_t user_id = 0;
  bool shares_memory = false;  // its shared memory begins with `cookie`
  Nonce cookie = {};
};

using HelloBytes = std::vector<std::byte>;
// `binding` ties the proofs to a TLS session; empty without TLS.
struct HelloSecret {
  std::string_view token;
  std::span<const std::byte> binding;
};

HelloBytes EncodeChallenge(const Challenge& challenge);
HelloBytes EncodeAnswer(const Answer& answer, const Challenge& challenge, HelloSecret secret);
HelloBytes EncodeWelcome(const Welcome& welcome, const Answer& answer, const Challenge& challenge,
                         HelloSecret secret);

// The size of the first whole message in `bytes`; nullopt when more bytes are needed. An error as
// soon as no hello can start like this.
Result<std::optional<size_t>> HelloLength(std::span<const std::byte> bytes);

// REQUIRES: `message` is one whole message.
// kFailedPrecondition: no version is spoken by both sides.
Result<Challenge> DecodeChallenge(std::span<const std::byte> message);
// The version for an answer to it.
uint16_t NewestCommonVersion(const Challenge& challenge);
Result<Answer> DecodeAnswer(std::span<const std::byte> message, const Challenge& challenge,
                            HelloSecret secret);
Result<Welcome> DecodeWelcome(std::span<const std::byte> message, const Answer& answer,
                              const Challenge& challenge, HelloSecret secret);

}  // namespace millrace::net
