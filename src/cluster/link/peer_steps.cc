#include "cluster/link/peer_steps.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "cluster/link/client_stream.h"
#include "cluster/link/server_stream.h"
#include "wire/codec.h"
#include "wire/control.grpc.pb.h"

namespace millrace::cluster {
namespace {

constexpr char kStepsMethod[] = "/millrace.proto.Peer/Steps";

}  // namespace

class PeerSteps::Impl : public proto::Peer::WithRawCallbackMethod_Steps<proto::Peer::Service> {
 public:
  Impl(PeerStepsOptions options, PeerStepsCallbacks callbacks)
      : options_(std::move(options)), callbacks_(std::move(callbacks)), gate_(options_.security) {}
  ~Impl() override;

  Status Start();
  int port() const { return port_; }
  Status Send(const WorkerAddress& to, Term term, const PeerMessage& message);
  void Forget(Incarnation peer);
  PeerStepsCounters counters() const;

 private:
  class Outgoing;
  class Incoming;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Steps(
      grpc::CallbackServerContext* context) override;
  Result<std::shared_ptr<Outgoing>> StreamTo(const WorkerAddress& to);
  void OutgoingEnded(Incarnation peer, const Outgoing* stream, const Status& reason);
  void IncomingEnded();

  const PeerStepsOptions options_;
  const PeerStepsCallbacks callbacks_;
  Gatekeeper gate_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;

  std::atomic<uint64_t> received_{0}, stale_{0}, broken_{0};
  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<Incarnation, std::shared_ptr<Outgoing>> outgoing_ MR_GUARDED_BY(mutex_);
  size_t streams_out_ MR_GUARDED_BY(mutex_) = 0;  // including those that are ending
  size_t streams_in_ MR_GUARDED_BY(mutex_) = 0;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
};

class PeerSteps::Impl::Outgoing : public ClientStream {
 public:
  Outgoing(Impl& peers, const std::shared_ptr<grpc::Channel>& channel, Incarnation peer)
      : ClientStream(channel, {peers.options_.send_messages_max, peers.options_.send_bytes_max}),
        peers_(peers),
        peer_(peer) {}

  Status SendMessage(Term term, const PeerMessage& message) {
    return Send([&] {
      auto bytes = wire::ThreadEncoder().Encode({term, peer_, sent_ + 1}, message);
      if (bytes.ok()) ++sent_;
      return bytes;
    });
  }

 private:
  Status Received(std::span<const uint8_t>) override {
    return InvalidArgument("a peer must not answer on the stream of steps");
  }
  void Ended(const Status& reason) override { peers_.OutgoingEnded(peer_, this, reason); }

  Impl& peers_;
  const Incarnation peer_;
  uint64_t sent_ = 0;  // under the stream's lock
};

class PeerSteps::Impl::Incoming : public ServerStream {
 public:
  Incoming(Impl& peers, grpc::CallbackServerContext* context)
      : ServerStream(context, SendLimits()), peers_(peers) {}

 private:
  Status Received(std::span<const uint8_t> bytes) override {
    auto received = wire::ThreadDecoder().DecodePeerMessage(bytes);
    if (received.ok() && received->envelope.incarnation != peers_.options_.incarnation) {
      peers_.stale_.fetch_add(1, std::memory_order_relaxed);
      return FailedPrecondition("another worker process has this address now");
    }
    Status wrong = received.status();
    if (received.ok() && received->envelope.sequence != ++received_) {
      wrong = InvalidArgument("a message of the stream was lost");
    }
    if (!wrong.ok()) {
      peers_.broken_.fetch_add(1, std::memory_order_relaxed);
      peers_.gate_.Refuse(peer(), wrong.message());
      return wrong;
    }
    peers_.received_.fetch_add(1, std::memory_order_relaxed);
    peers_.callbacks_.on_message(std::move(received->message));
    return OkStatus();
  }
  void Ended(const Status&) override { peers_.IncomingEnded(); }

  Impl& peers_;
  uint64_t received_ = 0;
};

Status PeerSteps::Impl::Start() {
  MR_RETURN_IF_ERROR(CheckLinkSecurity(options_.security, options_.address));
  MR_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(options_.security));
  MR_ASSIGN_OR_RETURN(credentials_, MakeChannelCredentials(options_.security));
  grpc::ServerBuilder builder;
  PrepareServer(builder, options_.address, std::move(credentials), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ && port_ != 0) return OkStatus();
  return Unavailable(
      fmt::format("cannot serve on {}: the address is in use or does not belong to this "
                  "machine, or the certificate is unusable",
                  options_.address));
}

PeerSteps::Impl::~Impl() {
  std::unordered_map<Incarnation, std::shared_ptr<Outgoing>> outgoing;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    outgoing.swap(outgoing_);
  }
  for (const auto& [peer, stream] : outgoing) stream->End(Cancelled("this worker is stopping"));
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
  MutexLock lock(mutex_);
  changed_.wait(lock,
                [this]() MR_REQUIRES(mutex_) { return streams_out_ == 0 && streams_in_ == 0; });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PeerSteps::Impl::Steps(
    grpc::CallbackServerContext* context) {
  grpc::Status admission = gate_.Admit(*context);
  {
    const MutexLock lock(mutex_);
    if (++streams_in_ > options_.peers_max && admission.ok()) {
      admission = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many streams"};
      gate_.Refuse(context->peer(), "too many streams");
    }
  }
  const auto stream = std::make_shared<Incoming>(*this, context);
  stream->Begin(admission);
  return stream.get();
}

void PeerSteps::Impl::IncomingEnded() {
  const MutexLock lock(mutex_);
  --streams_in_;
  changed_.notify_all();
}

Result<std::shared_ptr<PeerSteps::Impl::Outgoing>> PeerSteps::Impl::StreamTo(
    const WorkerAddress& to) {
  const MutexLock lock(mutex_);
  if (stopping_) return Cancelled("this worker is stopping");
  const auto found = outgoing_.find(to.incarnation);
  if (found != outgoing_.end()) return found->second;
  MR_RETURN_IF_ERROR(CheckLinkSecurity(options_.security, to.control));
  if (streams_out_ >= options_.peers_max) return ResourceExhausted("too many peers");
  auto stream =
      std::make_shared<Outgoing>(*this, MakeChannel(to.control, credentials_), to.incarnation);
  ++streams_out_;
  outgoing_.emplace(to.incarnation, stream);
  stream->Begin(kStepsMethod, options_.security, LinkRole::kWorker);
  return stream;
}

Status PeerSteps::Impl::Send(const WorkerAddress& to, Term term, const PeerMessage& message) {
  MR_ASSIGN_OR_RETURN(const auto stream, StreamTo(to));
  return stream->SendMessage(term, message);
}

void PeerSteps::Impl::Forget(Incarnation peer) {
  std::shared_ptr<Outgoing> stream;
  {
    const MutexLock lock(mutex_);
    const auto found = outgoing_.find(peer);
    if (found == outgoing_.end()) return;
    stream = std::move(found->second);
    outgoing_.erase(found);
  }
  stream->End(Cancelled("the stream is no longer needed"));
}

void PeerSteps::Impl::OutgoingEnded(Incarnation peer, const Outgoing* stream,
                                    const Status& reason) {
  bool lost = false;
  {
    // A stream that is no longer in the map was ended by this process.
    const MutexLock lock(mutex_);
    const auto found = outgoing_.find(peer);
    lost = found != outgoing_.end() && found->second.get() == stream;
    if (lost) outgoing_.erase(found);
  }
  if (lost) callbacks_.on_peer_lost(peer, reason);
  const MutexLock lock(mutex_);
  --streams_out_;
  changed_.notify_all();
}

PeerStepsCounters PeerSteps::Impl::counters() const {
  PeerStepsCounters c;
  c.received = received_;
  c.refused = gate_.refused() - broken_;
  c.stale = stale_;
  c.broken = broken_;
  return c;
}

Result<std::unique_ptr<PeerSteps>> PeerSteps::Start(PeerStepsOptions options,
                                                    PeerStepsCallbacks callbacks) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(callbacks));
  MR_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<PeerSteps>(new PeerSteps(std::move(impl)));
}

PeerSteps::PeerSteps(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerSteps::~PeerSteps() = default;

int PeerSteps::port() const { return impl_->port(); }
Status PeerSteps::Send(const WorkerAddress& to, Term term, const PeerMessage& message) {
  return impl_->Send(to, term, message);
}
void PeerSteps::Forget(Incarnation peer) { impl_->Forget(peer); }
PeerStepsCounters PeerSteps::counters() const { return impl_->counters(); }

}  // namespace millrace::cluster
