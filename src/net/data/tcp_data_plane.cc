#include "net/data/tcp_data_plane.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/host_port.h"
#include "base/log.h"
#include "net/data/same_host.h"

namespace millrace::net {
namespace {

// Pause after a failed or lost connection, so that a sender in a loop does not connect in a loop.
constexpr Duration kReconnectPause = Duration::Millis(100);
constexpr Duration kStrangerLogEvery = Duration::Seconds(1);
constexpr size_t kEndpointsRemembered = 4096;

Status CheckOptions(const TcpDataPlaneOptions& o) {
  if (o.token.empty()) return InvalidArgument("the data plane needs the cluster's token");
  for (size_t bytes : o.limits.window_bytes) {
    if (bytes < kWindowBytesMin) {
      return InvalidArgument(
          fmt::format("a window has {} bytes, the minimum is {}", bytes, kWindowBytesMin));
    }
  }
  if (o.limits.key_bytes > kWindowBytesMin / 4) return InvalidArgument("keys are too long");
  if (o.limits.request_bytes > kFrameBytesMax - kPullHeadBytes) {
    return InvalidArgument("requests are too long");
  }
  if (o.limits.serving_threads < 1) return InvalidArgument("at least one serving thread is needed");
  if (o.advertised_host.size() + 8 > kHelloNameBytesMax || o.host.size() + 8 > kHelloNameBytesMax ||
      o.host_id.size() > kHelloNameBytesMax) {
    return InvalidArgument("the host name is too long");
  }
  return OkStatus();
}

}  // namespace

DataPlaneStats DataCounters::Read() const {
  static_assert(sizeof(DataPlaneStats) % sizeof(uint64_t) == 0);
  DataPlaneStats copy;
  auto* to = reinterpret_cast<uint64_t*>(&copy);
  auto* from = reinterpret_cast<uint64_t*>(&stats_);
  for (size_t i = 0; i < sizeof(DataPlaneStats) / sizeof(uint64_t); ++i) {
    to[i] = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
  }
  return copy;
}

Result<std::unique_ptr<DataPlane>> StartTcpDataPlane(TcpDataPlaneOptions options,
                                                     DataPlaneEvents events) {
  return TcpDataPlane::Start(std::move(options), std::move(events));
}

Result<std::unique_ptr<DataPlane>> TcpDataPlane::Start(TcpDataPlaneOptions options,
                                                       DataPlaneEvents events) {
  MR_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<TcpDataPlane> plane(new TcpDataPlane());
  plane->options = std::move(options);
  plane->events = std::move(events);
  const TcpDataPlaneOptions& o = plane->options;
  if (o.tls) {
    MR_ASSIGN_OR_RETURN(
        PeerTls tls, LoadPeerTls(o.tls->certificate_path, o.tls->key_path, o.tls->authority_path));
    plane->server_tls = std::move(tls.server);
    plane->client_tls = std::move(tls.client);
  }
  plane->user_id = geteuid();
  plane->cookie = RandomNonce();
  PeerAddress& self = plane->LinkHost::self;
  self.incarnation = o.incarnation != 0 ? o.incarnation : RandomIncarnation();
  self.host_id = o.host_id.empty() ? ThisHostId() : o.host_id;
  self.process_id = getpid();
  // The first stranger can connect before the endpoint is known: it waits for the loop.
  MR_ASSIGN_OR_RETURN(
      plane->listener_,
      Listener::Start(o.host, o.port, [p = plane.get()](UniqueFd fd, std::string where) {
        auto socket = std::make_shared<UniqueFd>(std::move(fd));
        p->loop.Post(
            [p, socket, where = std::move(where)] { p->Accept(std::move(*socket), where); });
      }));
  const std::string& host = o.advertised_host.empty() ? o.host : o.advertised_host;
  self.endpoint = HostPort{host, plane->listener_->port()}.ToString();
  plane->pool_ = std::make_unique<WorkPool>(o.limits.serving_threads);
  plane->shared.Open(plane->cookie, [p = plane.get()](uint64_t number) {
    p->loop.Post([p, number] { p->TellGone(number); });
  });
  plane->loop.Start();
  return std::unique_ptr<DataPlane>(std::move(plane));
}

void TcpDataPlane::Stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  shared.Close();
  if (listener_ != nullptr) listener_->Stop();
  if (pool_ == nullptr) return;  // never started
  loop.Post([this] {
    std::vector<std::shared_ptr<Link>> links;
    for (auto& [raw, link] : incoming_) links.push_back(link);
    {
      MutexLock lock(mutex_);
      for (auto& [incarnation, link] : outgoing_) links.push_back(link);
    }
    for (auto& link : links) link->Close(Cancelled("the data plane is stopping"));
  });
  pool_->Stop();
  loop.Stop();
}

// ---- any thread

Result<std::shared_ptr<OutgoingLink>> TcpDataPlane::LinkTo(const PeerAddress& peer) {
  MutexLock lock(mutex_);
  if (stopping_) return Unavailable("the data plane is stopping");
  if (const auto it = outgoing_.find(peer.incarnation); it != outgoing_.end()) return it->second;
  if (peer.incarnation == 0) return InvalidArgument("the peer has no incarnation");
  if (forgotten_.contains(peer.incarnation)) return Unavailable("the peer was declared dead");
  if (const auto it = lost_.find(peer.incarnation); it != lost_.end()) {
    if (loop.Now() < it->second) return Unavailable("the peer was lost recently");
    lost_.erase(it);
  }
  if (endpoints_.contains(peer.endpoint)) {
    counters.Add(&DataPlaneStats::reconnects);
  } else if (endpoints_.size() < kEndpointsRemembered) {
    endpoints_.insert(peer.endpoint);
  }
  auto link = std::make_shared<OutgoingLink>(*this, peer);
  outgoing_.emplace(peer.incarnation, link);
  loop.Post([link] { link->Start(); });
  return link;
}

Status TcpDataPlane::Counted(const Status& status) {
  if (status.code() == StatusCode::kResourceExhausted) counters.Add(&DataPlaneStats::queue_full);
  return status;
}

Status TcpDataPlane::Send(const PeerAddress& to, MessageClass message_class,
                          std::span<const std::byte> key, Payload payload) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<OutgoingLink> link, LinkTo(to));
  return Counted(link->Push(message_class, key, payload));
}

Status TcpDataPlane::SendWithin(Duration limit, const PeerAddress& to, MessageClass message_class,
                                std::span<const std::byte> key, Payload payload) {
  MR_CHECK(!loop.InThread()) << "a wait in a callback never ends";
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<OutgoingLink> link, LinkTo(to));
  return Counted(link->PushWithin(loop.Now() + limit, message_class, key, payload));
}

PullId TcpDataPlane::Pull(const PeerAddress& from, std::span<const std::byte> request,
                          std::span<std::byte> destination, Duration limit, PullCallback done) {
  const PullId id(++pulls_made_);
  auto link = LinkTo(from);
  Status refused = link.status();
  if (request.size() > options.limits.request_bytes) {
    refused = InvalidArgument(fmt::format("a request of {} bytes, the limit is {}", request.size(),
                                          options.limits.request_bytes));
  }
  if (!refused.ok()) {
    counters.Add(&DataPlaneStats::pulls_failed);
    loop.Post([refused, done = std::move(done)] { done(refused, 0); });
    return id;
  }
  loop.Post([link = std::move(*link), id, destination, deadline = loop.Now() + limit,
             request = std::vector(request.begin(), request.end()),
             done = std::move(done)]() mutable {
    link->StartPull(id, std::move(request), destination, deadline, std::move(done));
  });
  return id;
}

void TcpDataPlane::CancelPull(PullId pull) {
  loop.Post([this, pull] {
    std::vector<std::shared_ptr<OutgoingLink>> links;
    {
      MutexLock lock(mutex_);
      for (auto& [incarnation, link] : outgoing_) links.push_back(link);
    }
    for (auto& link : links) {
      if (link->EndPull(pull, Cancelled("the pull was cancelled"))) return;
    }
  });
}

void TcpDataPlane::Forget(uint64_t incarnation) {
  {
    MutexLock lock(mutex_);
    if (!forgotten_.insert(incarnation).second) return;
    forgotten_order_.push_back(incarnation);
    if (forgotten_order_.size() > kForgottenMax) {
      forgotten_.erase(forgotten_order_.front());
      forgotten_order_.pop_front();
    }
  }
  loop.Post([this, incarnation] {
    std::vector<std::shared_ptr<Link>> links;
    {
      MutexLock lock(mutex_);
      const auto it = outgoing_.find(incarnation);
      if (it != outgoing_.end()) links.push_back(it->second);
    }
    for (auto& [raw, link] : incoming_) {
      if (link->peer() && link->peer()->incarnation == incarnation) links.push_back(link);
    }
    for (auto& link : links) link->Close(Unavailable("the peer was declared dead"));
  });
}

// ---- the loop's thread

void TcpDataPlane::Accept(UniqueFd socket, std::string where) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
  }
  if (incoming_.size() >= options.limits.connections) {
    counters.Add(&DataPlaneStats::strangers_refused);
    return LogStranger(where, ResourceExhausted("too many connections"));
  }
  if (strangers_.size() >= options.limits.strangers) {
    strangers_.front()->Close(ResourceExhausted("too many connections without a hello"));
  }
  auto link = std::make_shared<IncomingLink>(*this, std::move(where));
  strangers_.push_back(link.get());
  incoming_.emplace(link.get(), link);
  link->Start(std::move(socket));
}

void TcpDataPlane::TellGone(uint64_t shared_number) {
  for (auto& [raw, link] : incoming_) link->SharedGone(shared_number);
}

bool TcpDataPlane::Forgotten(uint64_t incarnation) {
  MutexLock lock(mutex_);
  return forgotten_.contains(incarnation);
}

// A process has one connection to this plane; a second one replaces it. An endpoint belongs to one
// process: when a new one has it, the previous process is gone, and its late data is dropped.
void TcpDataPlane::OnKnown(const std::shared_ptr<IncomingLink>& link) {
  std::erase(strangers_, link.get());
  counters.Add(&DataPlaneStats::connections_accepted);
  std::vector<std::shared_ptr<IncomingLink>> older;
  for (auto& [raw, other] : incoming_) {
    if (other == link || !other->peer()) continue;
    if (other->peer()->incarnation == link->peer()->incarnation ||
        other->peer()->endpoint == link->peer()->endpoint) {
      older.push_back(other);
    }
  }
  for (auto& other : older) {
    if (other->peer()->incarnation == link->peer()->incarnation) {
      other->Close(Unavailable("the peer has reconnected"));
    } else {
      counters.Add(&DataPlaneStats::stale_refused);
      other->Close(Unavailable("the peer has restarted"));
    }
  }
}

void TcpDataPlane::OnIncomingEnd(IncomingLink& link, const Status& reason) {
  std::erase(strangers_, &link);
  incoming_.erase(&link);
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
  }
  if (!link.peer()) {
    counters.Add(&DataPlaneStats::strangers_refused);
    return LogStranger(link.where(), reason);
  }
  counters.Add(&DataPlaneStats::connections_lost);
  if (events.on_peer_lost) events.on_peer_lost(*link.peer(), reason);
}

void TcpDataPlane::OnOutgoingEnd(OutgoingLink& link, const Status& reason) {
  {
    MutexLock lock(mutex_);
    outgoing_.erase(link.peer().incarnation);
    if (stopping_) return;
    const Time now = loop.Now();
    std::erase_if(lost_, [now](const auto& entry) { return entry.second < now; });
    lost_[link.peer().incarnation] = now + kReconnectPause;
  }
  counters.Add(&DataPlaneStats::connections_lost);
  if (events.on_peer_lost) events.on_peer_lost(link.peer(), reason);
}

void TcpDataPlane::LogStranger(const std::string& who, const Status& reason) {
  ++strangers_unlogged_;
  if (loop.Now() < next_stranger_log_) return;
  MR_LOG(warn, "data plane: refused {}: {} ({} refused since the last such message)",
         Printable(who), Printable(reason.message()), strangers_unlogged_);
  next_stranger_log_ = loop.Now() + kStrangerLogEvery;
  strangers_unlogged_ = 0;
}

}  // namespace millrace::net
