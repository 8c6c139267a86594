#include "cluster/runtime/local_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::cluster {
namespace {

// Messages arrive in order, so a source that does not know the KV yet never will.
constexpr KvPullLimits kPullLimits = {.part = Duration::Seconds(1), .export_delay = {}};

}  // namespace

Result<std::unique_ptr<LocalCluster>> LocalCluster::Start(ControllerHostOptions options,
                                                          const Clock& clock) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(clock));
  LocalCluster* raw = cluster.get();
  ControllerLinks links;
  links.send = [raw](ConnectionId to, const ToWorker& message) {
    const auto member = raw->Find(to);
    if (!member) return;
    raw->FromControllerHost(
        member, [member = member.get(), message] { member->host->FromController(message); });
  };
  links.disconnect = [raw](ConnectionId to, const std::string&) {
    const auto member = raw->Find(to);
    if (!member) return;
    raw->FromControllerHost(member, [member = member.get()] { member->host->SessionDown(); });
  };
  MR_ASSIGN_OR_RETURN(cluster->host_,
                      ControllerHost::Start(std::move(options), std::move(links), clock));
  cluster->to_host_ = std::make_unique<Mailbox>();
  cluster->heartbeat_thread_ = std::thread([raw] { raw->SendHeartbeats(); });
  return cluster;
}

LocalCluster::~LocalCluster() {
  host_->Close();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  heartbeat_thread_.join();
  std::vector<std::shared_ptr<Member>> members;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, member] : members_) members.push_back(member);
    std::ranges::copy(dead_members_, std::back_inserter(members));
  }
  for (const auto& member : members) member->host->Close();
  for (const auto& member : members) member->inbox.reset();
  for (const auto& member : members) member->server.reset();
  for (const auto& member : members) member->kv.reset();  // ends its pulls, which call the host
  for (const auto& member : members) member->host.reset();
  to_host_.reset();
  host_.reset();
}

std::shared_ptr<LocalCluster::Member> LocalCluster::Find(Incarnation incarnation) {
  MutexLock lock(mutex_);
  for (const auto& [id, member] : members_) {
    if (member->join.address.incarnation == incarnation) return member;
  }
  return nullptr;
}

std::shared_ptr<LocalCluster::Member> LocalCluster::Find(ConnectionId connection) {
  MutexLock lock(mutex_);
  const auto found = members_.find(connection);
  return found == members_.end() ? nullptr : found->second;
}

// Called with the controller's lock held: a worker host's lock may be taken under it, never the
// other way round.
void LocalCluster::FromControllerHost(const std::shared_ptr<Member>& member,
                                      std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (member->hung) return member->withheld.push_back(std::move(work));
  }
  member->inbox->PutOrRun(std::move(work));
}

void LocalCluster::PutTo(const std::shared_ptr<Member>& member, std::function<void()> work) {
  MutexLock lock(mutex_);
  if (stopping_) return;  // the inboxes are about to be destroyed
  if (member->hung) {
    member->withheld.push_back(std::move(work));
  } else {
    member->inbox->Put(std::move(work));
  }
}

// Messages of a hung worker are dropped, not delayed.
void LocalCluster::FromWorker(const std::shared_ptr<Member>& member, std::function<void()> work,
                              Mailbox::Wake wake) {
  {
    MutexLock lock(mutex_);
    if (member->hung) return;
  }
  to_host_->Put(std::move(work), wake);
}

bool LocalCluster::Silent(const std::weak_ptr<Member>& self) {
  const auto member = self.lock();
  if (!member) return true;
  MutexLock lock(mutex_);
  return member->hung;
}

WorkerLinks LocalCluster::LinksFor(const std::weak_ptr<Member>& self) {
  WorkerLinks links;
  links.send_up = [this, self](ToController message) {
    const auto member = self.lock();
    if (!member) return;
    const bool step = std::holds_alternative<StepDone>(message);
    FromWorker(
        member,
        [this, from = member->connection, message = std::move(message)] {
          host_->Receive(from, message);
        },
        step ? Mailbox::Wake::kNo : Mailbox::Wake::kYes);
  };
  links.after_batch = [this] { to_host_->RunHere(); };
  links.send_to_peer = [this, self](const WorkerAddress& to, PeerMessage message) {
    const auto member = Find(to.incarnation);
    if (!member || Silent(self)) return;
    PutTo(member, [m = member.get(), message = std::move(message)] { m->host->FromPeer(message); });
  };
  links.send_activations = [this, self](const WorkerAddress& to, PipelineId pipeline, StepId step,
                                        bool, ActivationBytes activations) -> Status {
    if (Silent(self)) return OkStatus();
    const auto member = Find(to.incarnation);
    if (!member) return Unavailable("the next stage is gone");
    PutTo(member, [m = member.get(), pipeline, step, activations = std::move(activations)] {
      m->host->ActivationsArrived(pipeline, step, activations);
    });
    return OkStatus();
  };
  links.start_pull = [self](ShardId, LayerRange layers, const std::shared_ptr<stage::Stage>& stage,
                            const PullKv& pull) {
    const auto member = self.lock();
    if (!member) return;
    member->kv->Pull(layers, stage, pull,
                     [m = member.get()](PullDone done) { m->host->PullEnded(done); });
  };
  links.export_kv = [self](ShardId, LayerRange layers, const std::shared_ptr<stage::Stage>& stage,
                           const ExportKv& kv) {
    if (const auto member = self.lock()) member->kv->Export(layers, stage, kv);
  };
  links.unexport_kv = [self](const KvHandle& handle) {
    if (const auto member = self.lock()) member->kv->Release(handle);
  };
  links.pipeline_closed = [self](PipelineId pipeline) {
    if (const auto member = self.lock()) member->kv->PipelineClosed(pipeline);
  };
  // Within a process there is no link to measure.
  links.start_probe = [](const ProbeLink&) {};
  links.end_session = [this, self](const std::string& reason, bool for_good) {
    const auto member = self.lock();
    if (member && for_good) End(member, reason);
  };
  return links;
}

void LocalCluster::AddWorker(Join join, ShardLoader loader) {
  auto member = std::make_shared<Member>();
  {
    MutexLock lock(mutex_);
    member->connection = ConnectionId(next_connection_++);
    const uint64_t seed =
        HashCounter(static_cast<uint64_t>(clock_.Now().ns), member->connection.value());
    join.address.incarnation = Incarnation(seed | 1);
    member->join = join;
  }
  member->kv = std::make_unique<KvExchange>(clock_, kPullLimits);
  member->kv->Use(LinkOf(member));
  member->host = std::make_unique<WorkerHost>(WorkerCoreOptions{std::move(join)}, std::move(loader),
                                              LinksFor(member), clock_);
  member->server = std::make_unique<Mailbox>();
  member->inbox = std::make_unique<Mailbox>();
  {
    MutexLock lock(mutex_);
    members_.emplace(member->connection, member);
  }
  member->inbox->Put([member = member.get()] { member->host->SessionUp(); });
}

void LocalCluster::KillWorker(const std::string& name) {
  std::shared_ptr<Member> member;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, other] : members_) {
      if (other->join.name == name) member = other;
    }
  }
  if (member) End(member, "the connection was closed");
}

// Simulates the end of a worker process: it sends no more messages, and its peers and the
// controller notice.
void LocalCluster::End(const std::shared_ptr<Member>& dead, const std::string& reason) {
  std::vector<std::shared_ptr<Member>> others;
  {
    MutexLock lock(mutex_);
    if (members_.erase(dead->connection) == 0) return;
    dead->hung = true;
    dead_members_.push_back(dead);
    for (const auto& [id, other] : members_) others.push_back(other);
  }
  // Closing ends its groups. The inbox cannot do this, because the worker's own threads may be
  // running the inbox now.
  dead->server->Put([dead = dead.get()] { dead->host->Close(); });
  to_host_->Put([this, from = dead->connection, reason] {
    host_->ConnectionLost(from, Unavailable(reason));
  });
  for (const auto& other : others) {
    PutTo(other, [other = other.get(), peer = dead->join.address.incarnation] {
      other->host->PeerLost(peer, Unavailable("the connection was closed"));
    });
  }
}

void LocalCluster::HangWorker(const std::string& name, bool hung) {
  MutexLock lock(mutex_);
  for (const auto& [id, member] : members_) {
    if (member->join.name != name) continue;
    member->hung = hung;
    if (hung) continue;
    for (auto& work : std::exchange(member->withheld, {})) member->inbox->Put(std::move(work));
  }
}

WorkerHost* LocalCluster::worker(const std::string& name) {
  MutexLock lock(mutex_);
  for (const auto& [id, member] : members_) {
    if (member->join.name == name) return member->host.get();
  }
  return nullptr;
}

size_t LocalCluster::exported_kv() {
  MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [id, member] : members_) count += member->kv->counters().exposed;
  return count;
}

// Another exchange of this process as the source of a pull. The ask is a message to the source, so
// it arrives after the one that exports the KV. The source reads on its server's thread, because a
// thread that holds the controller's lock may be running the inbox. `done` owns the buffer `to`,
// and members live as long as the cluster, so the reader may end its pull or be killed meanwhile.
// A worker that hangs gets no answer.
KvLink LocalCluster::LinkOf(const std::shared_ptr<Member>& member) {
  const auto ask = [this, self = std::weak_ptr(member)](
                       const KvSource& source, const stage::TransferItem& item,
                       std::span<std::byte> to, std::function<void(Status, uint64_t)> done) {
    const auto owner = Find(source.from.incarnation);
    if (!owner) return done(Unavailable("the source worker is gone"), 0);
    if (Silent(self)) return;
    PutTo(owner, [owner = owner.get(), handle = source.handle, item, to, done = std::move(done)] {
      owner->server->Put([owner, handle, item, to, done] {
        Status served = owner->kv->Serve(handle, item, [&](size_t bytes) {
          MR_CHECK(bytes == to.size()) << "the workers of a cluster have one model";
          return to;
        });
        done(std::move(served), to.size());
      });
    });
  };
  const WorkerAddress& address = member->join.address;
  return {.self = {address.incarnation, address.host_id}, .ask = ask};
}

void LocalCluster::SendHeartbeats() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    std::vector<std::shared_ptr<Member>> members;
    for (const auto& [id, member] : members_) {
      if (!member->hung) members.push_back(member);
    }
    lock.unlock();
    for (const auto& member : members) {
      if (member->host == nullptr || !member->host->welcomed()) continue;
      const Heartbeat beat = member->host->MakeHeartbeat();
      to_host_->Put([this, from = member->connection, beat] { host_->Beat(from, beat); });
    }
    members.clear();
    lock.lock();
    stop_.wait_for(lock, std::chrono::milliseconds(100),
                   [this]() MR_REQUIRES(mutex_) { return stopping_; });
  }
}

}  // namespace millrace::cluster
