#include "cluster/store/etcd_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/file.h"
#include "base/host_port.h"
#include "wire/grpc_log.h"

namespace millrace::cluster {
namespace {

constexpr size_t kPemBytesMax = 1 << 20;
constexpr int kMessageBytesMax = 128 << 20;  // fits a page of the largest values, see etcd_store.cc
// How long one member may take to answer a call that can be repeated at another member.
constexpr Duration kMemberTimeout = Duration::Seconds(2);
constexpr Duration kReasonTimeout = Duration::Millis(100);
constexpr Duration kPauseBetweenTries = Duration::Millis(20);

gpr_timespec After(Duration d) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(std::max<int64_t>(d.ns, 0), GPR_TIMESPAN));
}

Result<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const EtcdTls& tls) {
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return InvalidArgument(
        "etcd: a client certificate requires its key, and a key its certificate");
  }
  if (tls.ca_file.empty()) {
    if (tls.cert_file.empty()) return grpc::InsecureChannelCredentials();
    return InvalidArgument(
        "etcd: a client certificate requires a CA certificate; without one TLS is off");
  }
  grpc::SslCredentialsOptions options;
  MR_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile(tls.ca_file, kPemBytesMax));
  if (!tls.cert_file.empty()) {
    MR_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile(tls.cert_file, kPemBytesMax));
    MR_ASSIGN_OR_RETURN(options.pem_private_key, ReadFile(tls.key_file, kPemBytesMax));
  }
  return grpc::SslCredentials(options);
}

grpc::ChannelArguments ChannelOptions() {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // also limits one connection attempt
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
              10'000);  // etcd disconnects clients that ping every 5 s or faster
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(kMessageBytesMax);
  args.SetMaxSendMessageSize(kMessageBytesMax);
  return args;
}

}  // namespace

Status FromEtcd(const grpc::Status& status) {
  const std::string message = "etcd: " + status.error_message();
  switch (status.error_code()) {
    case grpc::OK: return OkStatus();
    case grpc::NOT_FOUND: return NotFound(message);
    case grpc::OUT_OF_RANGE: return DataLoss(message);  // compacted
    case grpc::INVALID_ARGUMENT: return InvalidArgument(message);
    case grpc::RESOURCE_EXHAUSTED: return ResourceExhausted(message);
    case grpc::FAILED_PRECONDITION: return FailedPrecondition(message);
    case grpc::DEADLINE_EXCEEDED: return {StatusCode::kDeadlineExceeded, message};
    case grpc::UNIMPLEMENTED: return Unimplemented(message);
    case grpc::PERMISSION_DENIED:
    case grpc::UNAUTHENTICATED: return {StatusCode::kUnauthenticated, message};
    default: return Unavailable(message);
  }
}

// A failed call reports a cause that the channel's state does not contain: nothing is listening, or
// a certificate failed verification.
Status EtcdClient::WhyUnreachable(Member& member) {
  grpc::ClientContext context;
  context.set_deadline(After(kReasonTimeout));
  etcdserverpb::RangeRequest request;
  request.set_key(std::string(1, '\0'));
  request.set_count_only(true);
  etcdserverpb::RangeResponse response;
  const grpc::Status status = member.kv->Range(&context, request, &response);
  std::string why = "no etcd member can be reached";
  if (status.error_code() == grpc::UNAVAILABLE) why += ": " + status.error_message();
  return Unavailable(why);
}

Result<std::unique_ptr<EtcdClient>> EtcdClient::Create(const EtcdStoreOptions& options) {
  if (options.endpoints.empty() || options.endpoints.size() > kEtcdEndpointsMax) {
    return InvalidArgument(fmt::format("etcd needs 1 to {} endpoints", kEtcdEndpointsMax));
  }
  gpr_set_log_function(wire::WriteGrpcLine);
  MR_ASSIGN_OR_RETURN(const auto credentials, Credentials(options.tls));
  std::unique_ptr<EtcdClient> client(new EtcdClient);
  for (const std::string& endpoint : options.endpoints) {
    const Result<HostPort> address = ParseHostPort(endpoint);
    if (!address.ok()) return address.status().WithContext("etcd endpoint");
    auto member = std::make_unique<Member>();
    member->channel =
        grpc::CreateCustomChannel("dns:///" + address->ToString(), credentials, ChannelOptions());
    member->kv = etcdserverpb::KV::NewStub(member->channel);
    member->lease = etcdserverpb::Lease::NewStub(member->channel);
    member->watch = etcdserverpb::Watch::NewStub(member->channel);
    client->members_.push_back(std::move(member));
  }
  return client;
}

Status EtcdClient::Call(Duration timeout, Repeat repeat, const Rpc& rpc) {
  const SteadyClock clock;
  const Time deadline = clock.Now() + timeout;
  while (true) {
    Member* member = Connected(deadline - clock.Now());
    if (member == nullptr) return WhyUnreachable(*members_[current_]);
    grpc::ClientContext context;
    Duration left = deadline - clock.Now();
    if (repeat == Repeat::kYes && members_.size() > 1) left = std::min(left, kMemberTimeout);
    context.set_deadline(After(left));
    const Status status = FromEtcd(rpc(*member, context));
    const bool retryable =
        status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded;
    if (retryable) AvoidMember(*member);
    if (!retryable || repeat == Repeat::kNo || deadline - clock.Now() <= kPauseBetweenTries) {
      return status;
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPauseBetweenTries.ns));
  }
}

EtcdClient::Member* EtcdClient::Connected(Duration timeout, const std::atomic<bool>* stop) {
  const SteadyClock clock;
  const Time deadline = clock.Now() + timeout;
  while (true) {
    const size_t first = current_;
    for (size_t i = 0; i < members_.size(); ++i) {
      const size_t index = (first + i) % members_.size();
      if (members_[index]->channel->GetState(true) != GRPC_CHANNEL_READY) continue;
      size_t expected = first;
      current_.compare_exchange_strong(expected, index);
      return members_[index].get();
    }
    const Duration left = deadline - clock.Now();
    if (left <= Duration{} || (stop != nullptr && *stop)) return nullptr;
    grpc::Channel& channel = *members_[first]->channel;
    channel.WaitForStateChange(channel.GetState(true), After(std::min(left, kPauseBetweenTries)));
  }
}

void EtcdClient::AvoidMember(const Member& member) {
  size_t index = current_;
  if (members_[index].get() == &member) {
    current_.compare_exchange_strong(index, (index + 1) % members_.size());
  }
}

}  // namespace millrace::cluster
