#include "cluster/runtime/local_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "base/rng.h"
#include "cluster/transfer/kv_rectangles.h"

namespace millrace::cluster {
namespace {

constexpr std::chrono::seconds kSourceLimit{1};  // how long a pull waits for its source

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
  for (const auto& member : members) {
    member->inbox.reset();
    member->pulls.reset();
  }
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
  links.start_pull = [this, self](ShardId, LayerRange layers,
                                  const std::shared_ptr<stage::Stage>& stage, const PullKv& pull) {
    const auto member = self.lock();
    if (!member) return;
    PutTo(member, [this, member = member.get(), layers, stage, pull] {
      member->pulls->Put([this, member, layers, stage, pull] {
        Pull(Find(member->connection), layers, stage, pull);
      });
    });
  };
  links.export_kv = [this, self](ShardId, LayerRange layers,
                                 const std::shared_ptr<stage::Stage>& stage, const ExportKv& kv) {
    const auto member = self.lock();
    if (!member) return;
    MutexLock lock(mutex_);
    member->kv.Sweep(clock_.Now());
    // A failure is counted, and the pulls of this KV fail.
    (void)member->kv.Export(layers, stage, kv, clock_.Now());
  };
  links.unexport_kv = [this, self](const KvHandle& handle) {
    const auto member = self.lock();
    if (!member) return;
    MutexLock lock(mutex_);
    member->kv.Release(handle);
  };
  links.pipeline_closed = [this, self](PipelineId pipeline) {
    const auto member = self.lock();
    if (!member) return;
    MutexLock lock(mutex_);
    member->kv.ClosePipeline(pipeline);
  };
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
  member->host = std::make_unique<WorkerHost>(WorkerCoreOptions{std::move(join)}, std::move(loader),
                                              LinksFor(member), clock_);
  member->pulls = std::make_unique<Mailbox>();
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
  dead->pulls->Put([dead = dead.get()] { dead->host->Close(); });
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
  for (const auto& [id, member] : members_) count += member->kv.size();
  return count;
}

void LocalCluster::Pull(const std::shared_ptr<Member>& member, LayerRange layers,
                        const std::shared_ptr<stage::Stage>& stage, const PullKv& pull) {
  if (!member) return;
  PullDone done{.transfer = pull.transfer};
  if (!stage) done.status = FailedPrecondition("the pipeline's weights were unloaded");
  const Time start = clock_.Now();
  if (done.status.ok()) {
    done.status = PullPieces(*member, layers, *stage, pull, done.bytes);
    done.activations = stage->HoldsActivations(pull.pipeline, layers.end, pull.blocks,
                                               pull.first_token, pull.end_token);
  }
  done.seconds = (clock_.Now() - start).seconds();
  member->host->PullEnded(done);
}

Status LocalCluster::PullPieces(const Member& member, LayerRange layers, stage::Stage& stage,
                                const PullKv& pull, int64_t& bytes) {
  if (pull.first_token == pull.end_token) return OkStatus();
  std::vector<KvHolder> holders;
  for (const KvSource& source : pull.sources) holders.push_back({source.layers, source.rank, true});
  const auto [first, end] = stage.kv_heads();
  MR_ASSIGN_OR_RETURN(const std::vector<KvPiece> pieces,
                      CoverKv({layers, first, end, pull.first_token, pull.end_token}, holders,
                              stage.model_kv_heads()));
  for (const KvPiece& piece : pieces) {
    const KvSource& source = pull.sources[piece.source];
    std::vector<std::byte> data(stage.KvBytes(piece.box));
    MR_RETURN_IF_ERROR(ReadFrom(source, piece.box, data));
    MR_RETURN_IF_ERROR(stage.WriteKv(pull.pipeline, piece.box, pull.blocks, data));
    if (source.from.incarnation != member.join.address.incarnation) bytes += std::ssize(data);
  }
  if (const auto activations = ActivationsToPull(layers, pull, member.join.address.incarnation)) {
    std::vector<std::byte> data(stage.KvBytes(activations->box));
    const KvSource& source = pull.sources[activations->source];
    if (!ReadFrom(source, activations->box, data).ok()) return OkStatus();
    if (source.from.incarnation != member.join.address.incarnation) bytes += std::ssize(data);
    return stage.WriteKv(pull.pipeline, activations->box, pull.blocks, data);
  }
  return OkStatus();
}

Status LocalCluster::ReadFrom(const KvSource& source, const stage::KvBox& box,
                              std::span<std::byte> out) {
  const auto owner = Find(source.from.incarnation);
  if (!owner) return Unavailable("the source worker is gone");
  // The source was told to export the KV before this pull was ordered. Once its queue as of now has
  // run, it either holds the KV or never will.
  const auto done = std::make_shared<std::promise<void>>();
  PutTo(owner, [done] { done->set_value(); });
  if (done->get_future().wait_for(kSourceLimit) != std::future_status::ready) {
    return Unavailable("the source worker does not answer");
  }
  MutexLock lock(mutex_);
  MR_ASSIGN_OR_RETURN(const KvReadLease lease,
                      owner->kv.BeginPull(source.handle, box, clock_.Now()));
  lock.unlock();
  const Status read = lease.Read(box, out);
  lock.lock();
  const Status held = owner->kv.EndPull(lease.ticket);
  return read.ok() ? held : read;
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
