// The bytes of a data connection after the hello, with correct checksums so that the fuzzer gets
// past them. Each step of the input is a frame (header fields, payload) or raw bytes. The completed
// frames are the same in one piece and in many, and none exceeds the frame limit. The first byte
// selects how to cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "net/data/crc32c.h"
#include "net/data/frame.h"
#include "net/data/hello.h"

namespace millrace::net {
namespace {

// Records the frames as text; rejects some, as a connection would.
class Sink : public FrameSink {
 public:
  Status OnFrameStart(const FrameHeader& h) override {
    MR_CHECK(h.payload_bytes <= kFrameBytesMax);
    MR_CHECK(static_cast<size_t>(h.message_class) < kMessageClasses);
    payload_.assign(h.payload_bytes, std::byte{0});
    return h.id == 0xdead ? InvalidArgument("refused") : OkStatus();
  }
  std::span<std::byte> PlaceFor(const FrameHeader& h, size_t at) override {
    MR_CHECK(at < h.payload_bytes);
    return std::span(payload_).subspan(at, std::min<size_t>(h.payload_bytes - at, 100));
  }
  Status OnFrameEnd(const FrameHeader& h) override {
    story += std::to_string(static_cast<int>(h.type)) + " " + std::to_string(h.id) + " " +
             std::to_string(h.value) + " " + std::to_string(h.small) + " " +
             std::to_string(Crc32c(payload_)) + "\n";
    if (h.type == FrameType::kPull) story += DecodePullHead(payload_).ok() ? "pull\n" : "no pull\n";
    return OkStatus();
  }
  std::string story;

 private:
  std::vector<std::byte> payload_;
};

std::string Play(std::span<const std::byte> stream, size_t piece_bytes) {
  Sink sink;
  FrameDecoder decoder(sink);
  while (!stream.empty()) {
    const size_t n = std::min(piece_bytes, stream.size());
    const Status status = decoder.Feed(stream.first(n));
    if (!status.ok()) return sink.story + status.ToString();
    stream = stream.subspan(n);
  }
  return sink.story + std::to_string(decoder.frames());
}

// The input's steps as a stream of bytes.
std::vector<std::byte> Stream(std::span<const uint8_t> in) {
  std::vector<std::byte> out;
  uint32_t number = 0;
  const auto take = [&](size_t n) {
    uint64_t v = 0;
    n = std::min(n, in.size());
    if (n > 0) std::memcpy(&v, in.data(), n);
    in = in.subspan(n);
    return v;
  };
  while (!in.empty()) {
    const uint64_t kind = take(1);
    const size_t n = std::min<size_t>(take(1), in.size());
    FrameHeader h;
    h.type = static_cast<FrameType>(kind & 15);
    h.message_class = static_cast<MessageClass>((kind >> 4) & 3);
    h.small = static_cast<uint16_t>(take(2));
    h.id = take(2);
    h.value = take(3);
    const auto payload = std::as_bytes(in.first(std::min(n, in.size())));
    in = in.subspan(payload.size());
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    if ((kind & 0xc0) == 0x40) h.payload_bytes = static_cast<uint32_t>(h.value << 16);
    if ((kind & 0xc0) != 0x80) {
      const HeaderBytes header = EncodeHeader(h, Crc32c(payload), number++);
      out.insert(out.end(), header.begin(), header.end());
    }
    out.insert(out.end(), payload.begin(), payload.end());
  }
  return out;
}

void TryHello(std::span<const std::byte> bytes) {
  const auto length = HelloLength(bytes);
  if (!length.ok() || !length->has_value()) return;
  const auto message = bytes.first(**length);
  const Challenge challenge;
  (void)DecodeChallenge(message);
  (void)DecodeAnswer(message, challenge, {"token", {}});
  (void)DecodeWelcome(message, {}, challenge, {"token", {}});
}

}  // namespace
}  // namespace millrace::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::net;  // NOLINT
  if (size < 2) return 0;
  TryHello(std::as_bytes(std::span(data + 1, size - 1)));
  const std::vector<std::byte> stream = Stream({data + 1, size - 1});
  const std::string whole = Play(stream, stream.size());
  const std::string pieces = Play(stream, 1 + data[0] % 64);
  MR_CHECK(whole == pieces) << whole << "\n--- in pieces:\n" << pieces;
  return 0;
}
