// Hand-made HTTP/2 frames for tests, to send what no client library would. Functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::cluster::testing {

inline constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kContinuation = 9
};
inline constexpr uint8_t kEndHeaders = 4;

inline std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame.append(payload);
}

// HPACK: an integer with a 7-bit prefix, and literals without Huffman coding or indexing.
inline std::string HpackNumber(size_t value) {
  if (value < 127) return {static_cast<char>(value)};
  std::string bytes(1, '\x7f');
  for (value -= 127; value >= 128; value >>= 7) bytes += static_cast<char>(value % 128 + 128);
  return bytes += static_cast<char>(value);
}
inline std::string Header(std::string_view name, std::string_view value) {
  std::string bytes(1, '\0');
  bytes.append(HpackNumber(name.size())).append(name);
  return bytes.append(HpackNumber(value.size())).append(value);
}

// The header block of a call, with `extra` headers before its own.
inline std::string CallHead(const std::vector<std::pair<std::string, std::string>>& extra) {
  std::string head;
  for (const auto& [name, value] : extra) head += Header(name, value);
  return head + Header(":method", "POST") + Header(":scheme", "http") +
         Header(":path", "/millrace.proto.Control/Session") + Header(":authority", "x") +
         Header("te", "trailers") + Header("content-type", "application/grpc");
}

}  // namespace millrace::cluster::testing
