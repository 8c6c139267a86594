#include "cluster/link/control_server.h"

#include <fmt/format.h>

#include <atomic>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cluster/link/echo_service.h"
#include "cluster/link/heartbeat_service.h"
#include "cluster/link/server_stream.h"

namespace millrace::cluster {
namespace {

constexpr auto kTickEvery = std::chrono::milliseconds(100);

}  // namespace

class ControlServer::Impl : public ControlCalls {
 public:
  Impl(ControlServerOptions options, ControlServerCallbacks callbacks)
      : options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        gate_(options_.security),
        heartbeats_(*this, gate_, options_.heartbeat_streams_max,
                    [this](const Heartbeat& beat) { OnHeartbeat(beat); }),
        echoes_(gate_) {}
  ~Impl() override;

  Status Start();
  int port() const { return port_; }
  Status Send(ConnectionId to, Term term, const ToWorker& message);
  void Close(ConnectionId connection, const std::string& reason);
  ControlServerCounters counters() const;

 private:
  class WorkerSession;
  friend class WorkerSession;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Echo(
      grpc::CallbackServerContext* context) override {
    return echoes_.Begin(context);
  }
  std::shared_ptr<WorkerSession> Find(ConnectionId id) const;
  bool JoinedOne(ConnectionId id, Incarnation incarnation);
  void EndedOne(ConnectionId id, Incarnation incarnation, bool joined, const Status& reason);
  void OnHeartbeat(const Heartbeat& beat);
  void RunTicks();

  const ControlServerOptions options_;
  const ControlServerCallbacks callbacks_;
  Gatekeeper gate_;
  HeartbeatService heartbeats_;
  EchoService echoes_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::thread ticker_;

  std::atomic<uint64_t> joined_{0}, broken_{0}, dropped_slow_{0}, beats_{0}, beats_unknown_{0};
  mutable Mutex mutex_;
  CondVar changed_;
  std::unordered_map<ConnectionId, std::shared_ptr<WorkerSession>> sessions_ MR_GUARDED_BY(mutex_);
  std::unordered_map<Incarnation, ConnectionId> by_incarnation_ MR_GUARDED_BY(mutex_);
  uint64_t last_id_ MR_GUARDED_BY(mutex_) = 0;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
};

class ControlServer::Impl::WorkerSession : public ServerStream {
 public:
  WorkerSession(Impl& server, grpc::CallbackServerContext* context, ConnectionId id)
      : ServerStream(context, {server.options_.send_messages_max, server.options_.send_bytes_max}),
        server_(server),
        id_(id),
        began_(SteadyClock().Now()) {}

  Status SendMessage(Term term, const ToWorker& message) {
    return Send([&] {
      auto bytes = wire::ThreadEncoder().Encode({term, incarnation_, sent_ + 1}, message);
      if (bytes.ok()) ++sent_;
      return bytes;
    });
  }
  void CheckTimes(Time now) {
    const ControlServerOptions& o = server_.options_;
    if (!joined_ && now - began_ > o.join_limit) {
      server_.gate_.Refuse(peer(), "it has not joined in time");
      Drop(Status(StatusCode::kDeadlineExceeded, "no Join in time"));
    }
    Tick(now, o.stall_limit, o.close_limit);
  }

 private:
  Status Received(std::span<const uint8_t> bytes) override {
    auto received = wire::ThreadDecoder().DecodeToController(bytes);
    Status wrong = received.ok() ? Check(*received) : received.status();
    if (!wrong.ok()) {
      if (joined_) server_.broken_.fetch_add(1, std::memory_order_relaxed);
      server_.gate_.Refuse(peer(), wrong.message());
      return wrong;
    }
    server_.callbacks_.on_message(id_, std::move(received->message), received->envelope);
    return OkStatus();
  }

  // Checks the sequence numbers, and that Join is the first message and the only one.
  Status Check(wire::Received<ToController>& received) {
    if (received.envelope.sequence != ++received_) {
      return InvalidArgument(fmt::format("message {} of the session has sequence number {}",
                                         received_, received.envelope.sequence));
    }
    Join* join = std::get_if<Join>(&received.message);
    if (joined_) {
      if (join != nullptr) return InvalidArgument("a second Join");
      if (received.envelope.incarnation == incarnation_) return OkStatus();
      return InvalidArgument("the incarnation has changed within a session");
    }
    if (join == nullptr) return InvalidArgument("the first message is not a Join");
    if (!server_.gate_.TokenMatches(join->token)) {
      return {StatusCode::kUnauthenticated, "the join token is wrong or missing"};
    }
    if (join->address.incarnation != received.envelope.incarnation) {
      return InvalidArgument("the Join names another incarnation than its envelope");
    }
    join->token.clear();
    incarnation_ = received.envelope.incarnation;
    if (!server_.JoinedOne(id_, incarnation_)) return Unavailable("the controller is stopping");
    joined_ = true;
    return OkStatus();
  }

  void StoppedReading() override { server_.dropped_slow_.fetch_add(1, std::memory_order_relaxed); }
  void Ended(const Status& reason) override {
    server_.EndedOne(id_, incarnation_, joined_, reason);
  }

  Impl& server_;
  const ConnectionId id_;
  const Time began_;
  Incarnation incarnation_;  // written before any thread may send
  std::atomic<bool> joined_{false};
  uint64_t received_ = 0;
  uint64_t sent_ = 0;  // under the stream's lock
};

Status ControlServer::Impl::Start() {
  MR_RETURN_IF_ERROR(CheckLinkSecurity(options_.security, options_.address));
  MR_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(options_.security));
  grpc::ServerBuilder builder;
  PrepareServer(builder, options_.address, std::move(credentials), &port_);
  builder.RegisterService(this);
  heartbeats_.AddQueue(builder);
  server_ = builder.BuildAndStart();
  if (!server_ || port_ == 0) {
    return Unavailable(
        fmt::format("cannot listen on {}: the address is in use or belongs to another "
                    "machine, or the certificate is unusable",
                    options_.address));
  }
  heartbeats_.Start();
  ticker_ = std::thread([this] { RunTicks(); });
  return OkStatus();
}

ControlServer::Impl::~Impl() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (ticker_.joinable()) ticker_.join();
  heartbeats_.StopExpecting();
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
  heartbeats_.Join();
  echoes_.Join();
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return sessions_.empty(); });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ControlServer::Impl::Session(
    grpc::CallbackServerContext* context) {
  grpc::Status admission = gate_.Admit(*context);
  std::shared_ptr<WorkerSession> session;
  {
    const MutexLock lock(mutex_);
    const ConnectionId id(++last_id_);
    if (admission.ok() && sessions_.size() >= options_.sessions_max) {
      admission = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many sessions"};
      gate_.Refuse(context->peer(), "too many sessions");
    }
    session = std::make_shared<WorkerSession>(*this, context, id);
    sessions_.emplace(id, session);
  }
  session->Begin(admission);
  return session.get();
}

std::shared_ptr<ControlServer::Impl::WorkerSession> ControlServer::Impl::Find(
    ConnectionId id) const {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

bool ControlServer::Impl::JoinedOne(ConnectionId id, Incarnation incarnation) {
  joined_.fetch_add(1, std::memory_order_relaxed);
  const MutexLock lock(mutex_);
  by_incarnation_[incarnation] = id;
  return !stopping_;
}

void ControlServer::Impl::EndedOne(ConnectionId id, Incarnation incarnation, bool joined,
                                   const Status& reason) {
  if (joined) callbacks_.on_disconnect(id, reason);
  const MutexLock lock(mutex_);
  const auto beats = by_incarnation_.find(incarnation);
  if (joined && beats != by_incarnation_.end() && beats->second == id) by_incarnation_.erase(beats);
  sessions_.erase(id);
  changed_.notify_all();
}

void ControlServer::Impl::OnHeartbeat(const Heartbeat& beat) {
  ConnectionId id;
  {
    const MutexLock lock(mutex_);
    const auto found = by_incarnation_.find(beat.incarnation);
    if (found == by_incarnation_.end()) {
      beats_unknown_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    id = found->second;
  }
  beats_.fetch_add(1, std::memory_order_relaxed);
  callbacks_.on_heartbeat(id, beat);
}

void ControlServer::Impl::RunTicks() {
  std::vector<std::shared_ptr<WorkerSession>> sessions;
  MutexLock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kTickEvery, [this]() MR_REQUIRES(mutex_) { return stopping_; });
    sessions.clear();
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
    lock.unlock();
    const Time now = SteadyClock().Now();
    for (const auto& session : sessions) session->CheckTimes(now);
    echoes_.Tick(now);
    sessions.clear();
    lock.lock();
  }
}

Status ControlServer::Impl::Send(ConnectionId to, Term term, const ToWorker& message) {
  const auto session = Find(to);
  return session ? session->SendMessage(term, message) : NotFound("no such session");
}

void ControlServer::Impl::Close(ConnectionId connection, const std::string& reason) {
  if (const auto session = Find(connection)) session->End(Cancelled(reason));
}

ControlServerCounters ControlServer::Impl::counters() const {
  ControlServerCounters c;
  {
    const MutexLock lock(mutex_);
    c.sessions = sessions_.size();
  }
  c.joined = joined_;
  c.refused = gate_.refused() - broken_;
  c.broken = broken_;
  c.dropped_slow = dropped_slow_;
  c.heartbeats = beats_;
  c.heartbeats_unknown = beats_unknown_;
  return c;
}

Result<std::unique_ptr<ControlServer>> ControlServer::Start(ControlServerOptions options,
                                                            ControlServerCallbacks callbacks) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(callbacks));
  MR_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() = default;

int ControlServer::port() const { return impl_->port(); }
Status ControlServer::Send(ConnectionId to, Term term, const ToWorker& message) {
  return impl_->Send(to, term, message);
}
void ControlServer::Close(ConnectionId connection, const std::string& reason) {
  impl_->Close(connection, reason);
}
ControlServerCounters ControlServer::counters() const { return impl_->counters(); }

}  // namespace millrace::cluster
