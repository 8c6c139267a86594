#include "cluster/link/link_grpc.h"

#include <fmt/format.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>

#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "core/worker_messages.h"
#include "wire/grpc_log.h"
#include "wire/limits.h"

namespace millrace::cluster {
namespace {

constexpr size_t kPemBytesMax = size_t{1} << 20;
constexpr Duration kLogEvery = Duration::Seconds(1);

// Runs once per process, before any other use of gRPC. The threads that run callbacks live as long
// as some server or channel exists. If the last one is destroyed on such a thread, as a stream's
// channel may be, gRPC 1.51 makes the thread join itself and then aborts. An idle server without a
// port, which is never destroyed, prevents this.
void PrepareGrpc() {
  static const std::unique_ptr<grpc::Server>* const holder = [] {
    gpr_set_log_function(wire::WriteGrpcLine);
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(new grpc::CallbackGenericService);
    return new std::unique_ptr<grpc::Server>(builder.BuildAndStart());
  }();
  MR_CHECK(*holder != nullptr);
}

struct PemTexts {
  std::string authority, certificate, key;
};

Result<PemTexts> ReadPems(const LinkSecurity& s) {
  PemTexts texts;
  MR_ASSIGN_OR_RETURN(texts.authority, ReadFile(s.authority_path, kPemBytesMax));
  MR_ASSIGN_OR_RETURN(texts.certificate, ReadFile(s.certificate_path, kPemBytesMax));
  MR_ASSIGN_OR_RETURN(texts.key, ReadFile(s.key_path, kPemBytesMax));
  return texts;
}

std::string_view Find(const grpc::ServerContextBase& context, const char* key) {
  const auto& metadata = context.client_metadata();
  if (metadata.count(key) != 1) return {};
  const grpc::string_ref value = metadata.find(key)->second;
  return {value.data(), value.size()};
}

constexpr std::pair<StatusCode, grpc::StatusCode> kCodes[] = {
    {StatusCode::kOk, grpc::StatusCode::OK},
    {StatusCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {StatusCode::kUnauthenticated, grpc::StatusCode::UNAUTHENTICATED},
    {StatusCode::kNotFound, grpc::StatusCode::NOT_FOUND},
    {StatusCode::kTooLarge, grpc::StatusCode::OUT_OF_RANGE},
    {StatusCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {StatusCode::kCancelled, grpc::StatusCode::CANCELLED},
    {StatusCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {StatusCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {StatusCode::kDataLoss, grpc::StatusCode::DATA_LOSS},
    {StatusCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION},
    {StatusCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED},
    {StatusCode::kInternal, grpc::StatusCode::INTERNAL},
};

}  // namespace

Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const LinkSecurity& s) {
  if (!s.tls()) return grpc::InsecureServerCredentials();
  MR_ASSIGN_OR_RETURN(PemTexts texts, ReadPems(s));
  // gRPC parses no HTTP/2 before the client has presented a certificate of our authority.
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(texts.authority);
  options.pem_key_cert_pairs.push_back({std::move(texts.key), std::move(texts.certificate)});
  return grpc::SslServerCredentials(options);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const LinkSecurity& s) {
  if (!s.tls()) return grpc::InsecureChannelCredentials();
  MR_ASSIGN_OR_RETURN(PemTexts texts, ReadPems(s));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(texts.authority);
  options.pem_private_key = std::move(texts.key);
  options.pem_cert_chain = std::move(texts.certificate);
  return grpc::SslCredentials(options);
}

void PrepareServer(grpc::ServerBuilder& builder, const std::string& address,
                   std::shared_ptr<grpc::ServerCredentials> credentials, int* port) {
  PrepareGrpc();
  builder.AddListeningPort(address, std::move(credentials), port);
  builder.SetMaxReceiveMessageSize(static_cast<int>(wire::kMessageBytesMax));
  builder.SetMaxSendMessageSize(static_cast<int>(wire::kMessageBytesMax));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMsMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kConnectionIdleMsMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepaliveMs / 2);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second server on the port must fail
  builder.SetResourceQuota(
      grpc::ResourceQuota("millrace").Resize(static_cast<size_t>(kConnectionMemoryBytesMax)));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           std::shared_ptr<grpc::ChannelCredentials> credentials) {
  PrepareGrpc();
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(static_cast<int>(wire::kMessageBytesMax));
  args.SetMaxSendMessageSize(static_cast<int>(wire::kMessageBytesMax));
  args.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, std::move(credentials), args);
}

void SignCall(grpc::ClientContext& context, const LinkSecurity& security) {
  context.AddMetadata(kProtocolKey, ToText(ProtocolRange()));
  if (!security.token.empty()) context.AddMetadata(kTokenKey, security.token);
}

Status CheckPeerRole(const grpc::AuthContext* peer, LinkRole role) {
  if (peer == nullptr) return OkStatus();
  for (const grpc::string_ref& name : peer->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME)) {
    MR_RETURN_IF_ERROR(CheckCertifiedRole({name.data(), name.size()}, role));
  }
  return OkStatus();
}

grpc::Status Gatekeeper::Admit(const grpc::ServerContextBase& context) {
  if (!token_.Matches(Find(context, kTokenKey))) {
    Refuse(context.peer(), "the join token is wrong or missing");
    return {grpc::StatusCode::UNAUTHENTICATED,
            "the join token is wrong or missing; use the token file of the controller"};
  }
  const Status role = CheckPeerRole(context.auth_context().get(), LinkRole::kWorker);
  if (!role.ok()) {
    Refuse(context.peer(), role.message());
    return {grpc::StatusCode::FAILED_PRECONDITION, "the caller: " + role.message()};
  }
  const auto its = ParseProtocolRange(Find(context, kProtocolKey));
  const Status fits = its.ok() ? CheckProtocol({}, *its) : its.status();
  if (!fits.ok()) {
    Refuse(context.peer(), fits.message());
    return {grpc::StatusCode::FAILED_PRECONDITION, fits.message()};
  }
  return grpc::Status::OK;
}

void Gatekeeper::Refuse(const std::string& peer, const std::string& reason) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  const Time now = SteadyClock().Now();
  const MutexLock lock(mutex_);
  if (now - last_line_ < kLogEvery) {
    ++not_logged_;
    return;
  }
  last_line_ = now;
  MR_LOG(warn, "refused {}: {} ({} more refused since the last such line)", Printable(peer),
         Printable(reason), std::exchange(not_logged_, 0));
}

grpc::ByteBuffer ToByteBuffer(std::span<const uint8_t> bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return {&slice, 1};
}

Result<std::span<const uint8_t>> OnePiece(const grpc::ByteBuffer& buffer, grpc::Slice& slice) {
  if (!buffer.TrySingleSlice(&slice).ok() && !buffer.DumpToSingleSlice(&slice).ok()) {
    return DataLoss("a gRPC message cannot be read");
  }
  return std::span(slice.begin(), slice.size());
}

Status FromGrpc(const grpc::Status& status) {
  for (const auto& [ours, theirs] : kCodes) {
    if (theirs == status.error_code()) return {ours, Printable(status.error_message(), 1024)};
  }
  return Unavailable(Printable(status.error_message(), 1024));
}

grpc::Status ToGrpc(const Status& status) {
  for (const auto& [ours, theirs] : kCodes) {
    if (ours == status.code()) return {theirs, Printable(status.message(), 1024)};
  }
  return {grpc::StatusCode::INTERNAL, ""};
}

}  // namespace millrace::cluster
