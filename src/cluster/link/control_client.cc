#include "cluster/link/control_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "cluster/link/client_stream.h"
#include "net/data/byte_stream.h"
#include "wire/control.grpc.pb.h"
#include "wire/handshake_failures.h"

namespace millrace::cluster {
namespace {

constexpr int kProbeMs = 1000;
constexpr char kSessionMethod[] = "/millrace.proto.Control/Session";

std::chrono::nanoseconds Chrono(Duration d) { return std::chrono::nanoseconds(d.ns); }

}  // namespace

// Sends heartbeats on its own channel, with blocking calls that need no other thread.
class HeartbeatSender {
 public:
  HeartbeatSender(std::shared_ptr<grpc::Channel> channel, LinkSecurity security, Duration every,
                  std::function<Heartbeat()> make)
      : channel_(std::move(channel)),
        security_(std::move(security)),
        make_(std::move(make)),
        every_(every),
        thread_([this] { Run(); }) {}

  ~HeartbeatSender() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
      if (context_) context_->TryCancel();
    }
    changed_.notify_all();
    thread_.join();
  }

  void SetEvery(Duration every) {
    const MutexLock lock(mutex_);
    every_ = every;
    changed_.notify_all();
  }

 private:
  // Sends on one stream until it breaks.
  void RunStream(MutexLock& lock) MR_REQUIRES(mutex_) {
    grpc::ClientContext& context = context_.emplace();
    mutex_.unlock();
    SignCall(context, security_);
    const auto stub = proto::Control::NewStub(channel_);
    const auto stream = stub->Heartbeats(&context);
    mutex_.lock();
    bool good = true;
    while (good && !stop_) {
      mutex_.unlock();
      good = Write(*stream);
      mutex_.lock();
      if (good)
        changed_.wait_for(lock, Chrono(every_), [this]() MR_REQUIRES(mutex_) { return stop_; });
    }
    mutex_.unlock();
    context.TryCancel();
    (void)stream->Finish();  // ignored: the session reports the reason as well
    mutex_.lock();
    context_.reset();
  }

  bool Write(grpc::ClientReaderWriter<proto::HeartbeatMessage, proto::Nothing>& stream) {
    const Heartbeat beat = make_();
    const auto bytes = encoder_.Encode({Term(), beat.incarnation, ++sent_}, beat);
    return bytes.ok() && message_.ParseFromArray(bytes->data(), static_cast<int>(bytes->size())) &&
           stream.Write(message_);
  }

  void Run() {
    MutexLock lock(mutex_);
    while (!stop_) {
      RunStream(lock);
      changed_.wait_for(lock, Chrono(every_), [this]() MR_REQUIRES(mutex_) { return stop_; });
    }
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const LinkSecurity security_;
  const std::function<Heartbeat()> make_;
  wire::Encoder encoder_;  // this and the next two members belong to the thread
  proto::HeartbeatMessage message_;
  uint64_t sent_ = 0;

  Mutex mutex_;
  CondVar changed_;
  Duration every_ MR_GUARDED_BY(mutex_);
  bool stop_ MR_GUARDED_BY(mutex_) = false;
  std::optional<grpc::ClientContext> context_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

class ControlClient::Impl {
 public:
  Impl(ControlClientOptions options, ControlClientCallbacks callbacks,
       std::shared_ptr<grpc::ChannelCredentials> credentials)
      : options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        credentials_(std::move(credentials)),
        heartbeat_every_(options_.heartbeat_every) {}
  ~Impl() { Disconnect(); }

  Status Connect(Duration limit);
  Status Send(Term term, ToController message);
  void SetHeartbeatEvery(Duration every);
  Result<std::shared_ptr<EchoCall>> OpenEcho();
  void Disconnect();

 private:
  class Stream;

  void OnAdmitted();
  void OnEnded(const Status& reason);
  Status WaitUntilAdmitted(std::chrono::steady_clock::time_point deadline);

  const ControlClientOptions options_;
  const ControlClientCallbacks callbacks_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;

  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Stream> stream_ MR_GUARDED_BY(mutex_);  // until it has ended
  bool admitted_ MR_GUARDED_BY(mutex_) = false;
  bool announced_ MR_GUARDED_BY(mutex_) = false;  // Connect returned ok: its end is reported
  bool silent_ MR_GUARDED_BY(mutex_) = false;     // the caller ends it: its end is not reported
  Status end_ MR_GUARDED_BY(mutex_);
  Duration heartbeat_every_ MR_GUARDED_BY(mutex_);
  std::unique_ptr<HeartbeatSender> heartbeats_ MR_GUARDED_BY(mutex_);
  std::weak_ptr<EchoCall> echo_ MR_GUARDED_BY(mutex_);  // the last one
};

class ControlClient::Impl::Stream : public ClientStream {
 public:
  Stream(Impl& client, const std::shared_ptr<grpc::Channel>& channel)
      : ClientStream(channel, {client.options_.send_messages_max, client.options_.send_bytes_max}),
        client_(client) {}

  Status SendMessage(Term term, const ToController& message) {
    return Send([&] {
      auto bytes = encoder_.Encode({term, client_.options_.incarnation, sent_ + 1}, message);
      if (bytes.ok()) ++sent_;
      return bytes;
    });
  }

 private:
  void Admitted() override { client_.OnAdmitted(); }
  Status Received(std::span<const uint8_t> bytes) override {
    MR_ASSIGN_OR_RETURN(auto received, decoder_.DecodeToWorker(bytes));
    if (received.envelope.sequence != ++received_) {
      return InvalidArgument("a message from the controller is missing");
    }
    if (received.envelope.incarnation != client_.options_.incarnation) {
      return InvalidArgument("the controller's message is for another process");
    }
    client_.callbacks_.on_message(std::move(received.message), received.envelope);
    return OkStatus();
  }
  void Ended(const Status& reason) override { client_.OnEnded(reason); }

  Impl& client_;
  wire::Encoder encoder_;  // under the stream's lock
  uint64_t sent_ = 0;      // likewise
  wire::Decoder decoder_;
  uint64_t received_ = 0;
};

// Returns false at the first failed attempt, so that the caller can try another controller soon.
bool Connected(grpc::Channel& channel, Duration limit) {
  const auto deadline = std::chrono::system_clock::now() + Chrono(limit);
  for (grpc_connectivity_state state = channel.GetState(true); state != GRPC_CHANNEL_READY;
       state = channel.GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
    if (!channel.WaitForStateChange(state, deadline)) return false;
  }
  return true;
}

// Whether something listens there, whatever it speaks.
bool AcceptsConnections(const std::string& address) {
  const Result<UniqueFd> socket = net::StartConnect(address);
  if (!socket.ok()) return false;
  pollfd wait{socket->get(), POLLOUT, 0};
  return poll(&wait, 1, kProbeMs) == 1 && net::ConnectError(socket->get()).empty();
}

// kFailedPrecondition if it is TLS that keeps a connection from coming about since `began`. The
// side that refuses a certificate knows why; the other one sees the connection end.
Status WhyNoTls(const std::string& controller, Time began) {
  const auto failure = wire::HandshakeFailures::OfProcess().LastSince(began);
  if (!failure && !AcceptsConnections(controller)) return OkStatus();
  return FailedPrecondition(fmt::format(
      "no TLS connection to {}: {}: the certificates of controller and worker must be valid now "
      "and issued by one authority; the other side's log may say more, and `millrace certs` makes "
      "new ones",
      controller, failure.value_or("it accepts connections, but ends the TLS handshake")));
}

Status ControlClient::Impl::Connect(Duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + Chrono(limit);
  Disconnect();
  const Time began = SteadyClock().Now();
  const auto channel = MakeChannel(options_.controller, credentials_);
  if (!Connected(*channel, limit)) {
    if (options_.security.tls()) MR_RETURN_IF_ERROR(WhyNoTls(options_.controller, began));
    return Unavailable("no connection to " + options_.controller +
                       ": nothing is listening there, or the TLS certificates do not match");
  }
  auto stream = std::make_shared<Stream>(*this, channel);
  {
    const MutexLock lock(mutex_);
    stream_ = stream;
    admitted_ = announced_ = silent_ = false;
    end_ = OkStatus();
  }
  stream->Begin(kSessionMethod, options_.security, LinkRole::kController);
  const Status admitted = WaitUntilAdmitted(deadline);
  if (!admitted.ok()) Disconnect();
  return admitted;
}

Status ControlClient::Impl::WaitUntilAdmitted(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  changed_.wait_until(lock, deadline,
                      [this]() MR_REQUIRES(mutex_) { return admitted_ || !stream_; });
  if (!stream_) return end_;
  if (!admitted_) {
    return {StatusCode::kDeadlineExceeded, options_.controller + " does not answer"};
  }
  announced_ = true;
  heartbeats_ = std::make_unique<HeartbeatSender>(MakeChannel(options_.controller, credentials_),
                                                  options_.security, heartbeat_every_,
                                                  callbacks_.make_heartbeat);
  return OkStatus();
}

void ControlClient::Impl::OnAdmitted() {
  const MutexLock lock(mutex_);
  admitted_ = true;
  changed_.notify_all();
}

void ControlClient::Impl::OnEnded(const Status& reason) {
  bool report = false;
  {
    const MutexLock lock(mutex_);
    end_ = reason;
    report = announced_ && !silent_;
  }
  if (report) callbacks_.on_disconnect(reason);
  const MutexLock lock(mutex_);
  stream_.reset();
  changed_.notify_all();
}

Status ControlClient::Impl::Send(Term term, ToController message) {
  if (Join* join = std::get_if<Join>(&message)) join->token = options_.security.token;
  std::shared_ptr<Stream> stream;
  {
    const MutexLock lock(mutex_);
    stream = stream_;
  }
  return stream ? stream->SendMessage(term, message) : Unavailable("no session");
}

void ControlClient::Impl::SetHeartbeatEvery(Duration every) {
  const MutexLock lock(mutex_);
  heartbeat_every_ = every;
  if (heartbeats_) heartbeats_->SetEvery(every);
}

Result<std::shared_ptr<EchoCall>> ControlClient::Impl::OpenEcho() {
  const MutexLock lock(mutex_);
  if (!stream_ || silent_) return Unavailable("no session");
  auto echo = std::make_shared<EchoCall>(MakeChannel(options_.controller, credentials_),
                                         options_.security, options_.incarnation);
  echo_ = echo;
  return echo;
}

void ControlClient::Impl::Disconnect() {
  MutexLock lock(mutex_);
  const auto heartbeats = std::move(heartbeats_);
  const auto stream = stream_;
  const auto echo = echo_.lock();
  silent_ = true;
  lock.unlock();
  if (echo) echo->End(Cancelled("the worker ended the session"));
  if (stream) stream->End(Cancelled("the worker ended the session"));
  lock.lock();
  changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return !stream_; });
  lock.unlock();  // `heartbeats` joins its thread below
}

Result<std::unique_ptr<ControlClient>> ControlClient::Create(ControlClientOptions options,
                                                             ControlClientCallbacks callbacks) {
  MR_RETURN_IF_ERROR(CheckLinkSecurity(options.security, options.controller));
  MR_ASSIGN_OR_RETURN(auto credentials, MakeChannelCredentials(options.security));
  auto impl =
      std::make_unique<Impl>(std::move(options), std::move(callbacks), std::move(credentials));
  return std::unique_ptr<ControlClient>(new ControlClient(std::move(impl)));
}

Status TryConnection(const std::string& address, const LinkSecurity& security, Duration limit) {
  MR_ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(security));
  const Time began = SteadyClock().Now();
  if (Connected(*MakeChannel(address, credentials), limit)) return OkStatus();
  if (security.tls()) MR_RETURN_IF_ERROR(WhyNoTls(address, began));
  return Unavailable(fmt::format("no connection to {}", address));
}

ControlClient::ControlClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlClient::~ControlClient() = default;

Status ControlClient::Connect(Duration limit) { return impl_->Connect(limit); }
Status ControlClient::Send(Term term, ToController message) {
  return impl_->Send(term, std::move(message));
}
void ControlClient::SetHeartbeatEvery(Duration every) { impl_->SetHeartbeatEvery(every); }
Result<std::shared_ptr<EchoCall>> ControlClient::OpenEcho() { return impl_->OpenEcho(); }
void ControlClient::Disconnect() { impl_->Disconnect(); }

}  // namespace millrace::cluster
