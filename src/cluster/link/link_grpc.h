// Helpers that the gRPC clients and servers of this folder share: credentials, limits of channels
// and servers, authentication of calls, and conversion of bytes and statuses. Private to this
// folder. Any thread may call them.
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
#include "cluster/link/link_security.h"

namespace millrace::cluster {

inline constexpr int kMetadataBytesMax = 8 * 1024;
inline constexpr int kStreamsPerConnectionMax = 4;
inline constexpr int kHandshakeMsMax = 5'000;
inline constexpr int kConnectionIdleMsMax = 60'000;  // without a call
inline constexpr int kKeepaliveMs = 5'000;
inline constexpr int kConnectionMemoryBytesMax = 1 << 30;  // for all connections of a server

inline constexpr char kTokenKey[] = "millrace-token";
inline constexpr char kProtocolKey[] = "millrace-protocol";

Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const LinkSecurity& s);
Result<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const LinkSecurity& s);

// Sets the limits and the one listening address; BuildAndStart fills in `port`.
void PrepareServer(grpc::ServerBuilder& builder, const std::string& address,
                   std::shared_ptr<grpc::ServerCredentials> credentials, int* port);
// A channel with a connection of its own, which other channels do not share.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           std::shared_ptr<grpc::ChannelCredentials> credentials);

// Adds the token and the protocol version to the metadata of a call.
void SignCall(grpc::ClientContext& context, const LinkSecurity& security);

// Whether the peer of a call may have that role, by its certificate.
Status CheckPeerRole(const grpc::AuthContext* peer, LinkRole role);

// Checks what SignCall wrote, and that the caller may be a worker. Logs at most one refusal per
// second and counts the others.
class Gatekeeper {
 public:
  explicit Gatekeeper(const LinkSecurity& security) : token_(security.token) {}
  grpc::Status Admit(const grpc::ServerContextBase& context);
  // For a Join message, which repeats the token.
  bool TokenMatches(std::string_view given) const { return token_.Matches(given); }
  // Counts and logs: `peer` was refused for `reason`.
  void Refuse(const std::string& peer, const std::string& reason);
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  const JoinToken token_;
  std::atomic<uint64_t> refused_{0};
  Mutex mutex_;
  Time last_line_ MR_GUARDED_BY(mutex_){-1'000'000'000'000};
  uint64_t not_logged_ MR_GUARDED_BY(mutex_) = 0;  // since last_line_
};

grpc::ByteBuffer ToByteBuffer(std::span<const uint8_t> bytes);
// The bytes of the buffer in one contiguous piece; they live as long as the slice.
Result<std::span<const uint8_t>> OnePiece(const grpc::ByteBuffer& buffer, grpc::Slice& slice);

Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const Status& status);

}  // namespace millrace::cluster
