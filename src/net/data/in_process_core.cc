#include "net/data/in_process_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "net/data/frame.h"

namespace millrace::net {

// ---- the network

void InProcessNetwork::Add(const std::shared_ptr<InProcessCore>& core) {
  MutexLock lock(mutex_);
  cores_[core->self.endpoint] = core;
}

void InProcessNetwork::Remove(const InProcessCore& core) {
  MutexLock lock(mutex_);
  const auto it = cores_.find(core.self.endpoint);
  if (it != cores_.end() && it->second.get() == &core) cores_.erase(it);
}

std::shared_ptr<InProcessCore> InProcessNetwork::Find(const PeerAddress& peer) {
  MutexLock lock(mutex_);
  const auto it = cores_.find(peer.endpoint);
  const bool found = it != cores_.end() && it->second->self.incarnation == peer.incarnation;
  return found ? it->second : nullptr;
}

std::vector<std::shared_ptr<InProcessCore>> InProcessNetwork::All() {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<InProcessCore>> all;
  for (auto& [endpoint, core] : cores_) all.push_back(core);
  return all;
}

// ---- pulls

bool InProcessPull::Write(std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  if (!done_) return false;
  if (!bytes.empty()) std::memcpy(destination_.data() + written_, bytes.data(), bytes.size());
  written_ += bytes.size();
  return true;
}

PullCallback InProcessPull::End() {
  MutexLock lock(mutex_);
  return std::exchange(done_, nullptr);
}

// ---- a plane

InProcessCore::InProcessCore(std::shared_ptr<InProcessNetwork> network,
                             InProcessDataPlaneOptions options, DataPlaneEvents e)
    : limits(options.limits),
      events(std::move(e)),
      network_(std::move(network)),
      pool_(options.limits.serving_threads) {
  self.endpoint = std::move(options.endpoint);
  self.incarnation = options.incarnation != 0 ? options.incarnation : RandomIncarnation();
}

void InProcessCore::Start() {
  loop.Start();
  network_->Add(shared_from_this());
  for (auto& other : network_->All()) {
    if (other.get() == this) continue;
    std::vector<PeerAddress> older;
    {
      MutexLock lock(other->mutex_);
      for (auto& [incarnation, peer] : other->met_) {
        if (peer.endpoint == self.endpoint) older.push_back(peer);
      }
    }
    for (const PeerAddress& peer : older) other->OnGone(peer, Unavailable("it has restarted"));
  }
}

void InProcessCore::Stop() {
  std::unordered_map<uint64_t, std::shared_ptr<InProcessChannel>> channels;
  std::vector<std::shared_ptr<InProcessPull>> pulls;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    channels.swap(channels_);
    for (auto& [id, pull] : pulls_) pulls.push_back(pull);
  }
  network_->Remove(*this);
  for (auto& [incarnation, channel] : channels) channel->Close();
  for (auto& pull : pulls) Finish(pull, Cancelled("the data plane is stopping"));
  for (auto& other : network_->All()) other->OnGone(self, Unavailable("it has stopped"));
  pool_.Stop();
  loop.Stop();
}

void InProcessCore::Met(const PeerAddress& peer) {
  MutexLock lock(mutex_);
  met_.emplace(peer.incarnation, peer);
}

bool InProcessCore::Refuses(uint64_t incarnation) {
  MutexLock lock(mutex_);
  return stopping_ || forgotten_.contains(incarnation);
}

void InProcessCore::OnGone(const PeerAddress& peer, const Status& reason) {
  std::shared_ptr<InProcessChannel> channel;
  std::vector<std::shared_ptr<InProcessPull>> pulls;
  {
    MutexLock lock(mutex_);
    if (stopping_ || met_.erase(peer.incarnation) == 0) return;
    if (const auto it = channels_.find(peer.incarnation); it != channels_.end()) {
      channel = std::move(it->second);
      channels_.erase(it);
    }
    for (auto& [id, pull] : pulls_) {
      if (pull->from().incarnation == peer.incarnation) pulls.push_back(pull);
    }
  }
  if (channel) counters.Add(&DataPlaneStats::messages_dropped, channel->Close());
  counters.Add(&DataPlaneStats::connections_lost);
  for (auto& pull : pulls) Finish(pull, reason);
  loop.Post([me = shared_from_this(), peer, reason] {
    if (me->events.on_peer_lost) me->events.on_peer_lost(peer, reason);
  });
}

Result<std::shared_ptr<InProcessChannel>> InProcessCore::ChannelTo(const PeerAddress& peer) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return Unavailable("the data plane is stopping");
    if (forgotten_.contains(peer.incarnation)) return Unavailable("the peer was declared dead");
    const auto it = channels_.find(peer.incarnation);
    if (it != channels_.end()) return it->second;
  }
  const std::shared_ptr<InProcessCore> to = network_->Find(peer);
  if (to == nullptr) {
    loop.Post([me = shared_from_this(), peer] {
      if (me->events.on_peer_lost) me->events.on_peer_lost(peer, Unavailable("it does not exist"));
    });
    return Unavailable("the peer does not exist");
  }
  if (to->Refuses(self.incarnation)) {
    to->counters.Add(&DataPlaneStats::stale_refused);
    return Unavailable("the peer refuses this process");
  }
  Met(peer);
  to->Met(self);
  MutexLock lock(mutex_);
  auto& channel = channels_[peer.incarnation];
  if (channel == nullptr) {
    channel = std::make_shared<InProcessChannel>(self, to, limits);
    counters.Add(&DataPlaneStats::connections_made);
    to->counters.Add(&DataPlaneStats::connections_accepted);
  }
  return channel;
}

void InProcessCore::Forget(uint64_t incarnation) {
  PeerAddress peer;
  {
    MutexLock lock(mutex_);
    if (!forgotten_.insert(incarnation).second) return;
    forgotten_order_.push_back(incarnation);
    if (forgotten_order_.size() > DataPlane::kForgottenMax) {
      forgotten_.erase(forgotten_order_.front());
      forgotten_order_.pop_front();
    }
    const auto it = met_.find(incarnation);
    if (it == met_.end()) return;
    peer = it->second;
  }
  OnGone(peer, Unavailable("the peer was declared dead"));
  // The other side's channel to this plane ends too, as with a cut connection.
  if (const auto other = network_->Find(peer))
    other->OnGone(self, Unavailable("it closed the connection"));
}

void InProcessCore::Pull(PullId id, const PeerAddress& from, std::span<const std::byte> request,
                         std::span<std::byte> destination, Duration limit, PullCallback done) {
  auto pull = std::make_shared<InProcessPull>(id, from, destination, std::move(done));
  Status refused = ChannelTo(from).status();
  const std::shared_ptr<InProcessCore> owner = refused.ok() ? network_->Find(from) : nullptr;
  if (refused.ok() && owner == nullptr) refused = Unavailable("the peer does not exist");
  if (refused.ok() && request.size() > limits.request_bytes) {
    refused = InvalidArgument("the request is too long");
  }
  if (refused.ok() && !owner->events.on_pull) {
    refused = Unimplemented("this process does not serve pulls");
  }
  {
    MutexLock lock(mutex_);
    if (refused.ok() && pulls_.size() >= limits.pulls_per_peer) {
      refused = ResourceExhausted("too many pulls at once");
    }
    pulls_.emplace(id, pull);
  }
  if (!refused.ok()) return Finish(pull, refused);
  loop.Post([me = shared_from_this(), pull, end = loop.Now() + limit] {
    pull->timer = me->loop.At(end, [me = me.get(), pull] {
      me->Finish(pull, {StatusCode::kDeadlineExceeded, "the pull took too long"});
    });
  });
  owner->pool_.Run(
      [me = shared_from_this(), owner, pull,
       request = std::vector(request.begin(), request.end())] { me->Serve(owner, pull, request); });
}

// On the owner's serving thread.
void InProcessCore::Serve(const std::shared_ptr<InProcessCore>& owner,
                          std::shared_ptr<InProcessPull> pull,
                          const std::vector<std::byte>& request) {
  Result<PullSource> source = owner->events.on_pull(self, request);
  if (!source.ok()) return Finish(pull, source.status());
  uint64_t total = 0;
  if (const auto* given = std::get_if<PullSegments>(&*source)) {
    const auto pin = owner->regions.PinFor(*given);
    if (!pin.ok()) return Finish(pull, pin.status());
    for (const auto& segment : given->segments) total += segment.size();
    if (total > pull->room()) {
      return Finish(pull, InvalidArgument("the owner has more bytes than the destination holds"));
    }
    for (auto rest : given->segments) {
      while (!rest.empty()) {
        const size_t n = std::min(rest.size(), kFrameBytesMax);
        if (!pull->Write(rest.first(n))) return;
        rest = rest.subspan(n);
      }
    }
  } else {
    const auto& producer = std::get<PullProducer>(*source);
    total = producer.bytes;
    if (total > pull->room()) {
      return Finish(pull, InvalidArgument("the owner has more bytes than the destination holds"));
    }
    std::vector<std::byte> chunk(std::min<uint64_t>(total, kFrameBytesMax));
    for (uint64_t at = 0; at < total;) {
      const auto out = std::span(chunk).first(std::min<uint64_t>(chunk.size(), total - at));
      if (const Status s = producer.produce(at, out); !s.ok()) return Finish(pull, s);
      if (!pull->Write(out)) return;
      at += out.size();
    }
  }
  owner->counters.Add(&DataPlaneStats::pulls_served);
  owner->counters.Add(&DataPlaneStats::pull_bytes_served, total);
  Finish(pull, OkStatus());
}

// Any thread. The callback runs on the reader's loop.
void InProcessCore::Finish(const std::shared_ptr<InProcessPull>& pull, const Status& status) {
  PullCallback done = pull->End();
  if (!done) return;
  {
    MutexLock lock(mutex_);
    pulls_.erase(pull->id());
  }
  counters.Add(status.ok() ? &DataPlaneStats::pulls_ok : &DataPlaneStats::pulls_failed);
  if (status.ok()) counters.Add(&DataPlaneStats::pull_bytes_received, pull->written());
  loop.Post([me = shared_from_this(), pull, status, done = std::move(done)] {
    if (pull->timer) me->loop.Cancel(*pull->timer);
    pull->timer.reset();
    done(status, pull->written());
  });
}

void InProcessCore::CancelPull(PullId id, const Status& why) {
  std::shared_ptr<InProcessPull> pull;
  {
    MutexLock lock(mutex_);
    const auto it = pulls_.find(id);
    if (it == pulls_.end()) return;
    pull = it->second;
  }
  Finish(pull, why);
}

}  // namespace millrace::net
