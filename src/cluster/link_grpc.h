// What the gRPC bodies of this folder share: credentials, limits of a channel and of a server,
// authentication of a call, bytes in and out. Private to them; any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/link_security.h"

namespace millrace::cluster {

inline constexpr int kMetadataBytesMax = 8 * 1024;
inline constexpr int kStreamsPerConnectionMax = 4;
inline constexpr int kHandshakeMsMax = 5'000;
inline constexpr int kConnectionIdleMsMax = 60'000;  // without a call
inline constexpr int kKeepaliveMs = 5'000;
inline constexpr int kConnectionMemoryBytesMax = 1 << 30;  // of all connections of a server

inline constexpr char kTokenKey[] = "millrace-token";
inline constexpr char kProtocolKey[] = "millrace-protocol";

Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const LinkSecurity& s);
Result<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const LinkSecurity& s);

// Limits, and the one port; `port` is filled in by BuildAndStart.
void PrepareServer(grpc::ServerBuilder& builder, const std::string& address,
                   std::shared_ptr<grpc::ServerCredentials> credentials, int* port);
// A connection that it shares with no other channel.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           std::shared_ptr<grpc::ChannelCredentials> credentials);

// Token and protocol version, at the head of every call.
void SignCall(grpc::ClientContext& context, const LinkSecurity& security);

// Checks what SignCall wrote; one log line a second at most, the rest is counted.
class Gatekeeper {
 public:
  explicit Gatekeeper(const LinkSecurity& security) : token_(security.token) {}
  grpc::Status Admit(const grpc::ServerContextBase& context);
  // Of a Join, which repeats the token.
  bool TokenMatches(std::string_view given) const { return token_.Matches(given); }
  // Counts and logs: `peer` was refused for `reason`.
  void Refuse(const std::string& peer, const std::string& reason);
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  const JoinToken token_;
  std::atomic<uint64_t> refused_{0};
  Mutex mutex_;
  Time last_line_ MR_GUARDED_BY(mutex_){-1'000'000'000'000};
  uint64_t unsaid_ MR_GUARDED_BY(mutex_) = 0;
};

grpc::ByteBuffer ToByteBuffer(std::span<const uint8_t> bytes);
// The bytes in one piece; they live as long as the slice.
Result<std::span<const uint8_t>> OnePiece(const grpc::ByteBuffer& buffer, grpc::Slice& slice);

Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const Status& status);

}  // namespace millrace::cluster
