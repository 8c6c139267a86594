// The implementation of an in-process data plane. Shared by the plane, by its peers while they talk
// to it, and by holders of its messages.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "net/data/in_process_data_plane.h"
#include "net/data/link_host.h"
#include "net/data/region_table.h"
#include "net/data/shared_table.h"
#include "net/data/work_pool.h"
#include "net/event_loop.h"

namespace millrace::net {

class InProcessCore;

class InProcessNetwork {
 public:
  // Any thread. The plane that had the endpoint before is notified that it is replaced.
  void Add(const std::shared_ptr<InProcessCore>& core);
  void Remove(const InProcessCore& core);
  // Null when no plane has this endpoint, or one with another incarnation.
  std::shared_ptr<InProcessCore> Find(const PeerAddress& peer);
  std::vector<std::shared_ptr<InProcessCore>> All();

 private:
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<InProcessCore>> cores_ MR_GUARDED_BY(mutex_);
};

// Messages from one plane to another: those that wait, and those that the receiver holds.
class InProcessChannel : public std::enable_shared_from_this<InProcessChannel> {
 public:
  InProcessChannel(PeerAddress from, std::shared_ptr<InProcessCore> to, DataPlaneLimits sender);

  // Any thread.
  Status Push(MessageClass message_class, std::span<const std::byte> key, Payload payload);
  bool WaitForRoom(MessageClass message_class, size_t bytes, Time deadline);
  void Release(MessageClass message_class, size_t cost);
  // Drops waiting messages and accepts no further ones. Returns the number of dropped messages.
  size_t Close();

  void Deliver();  // the receiver's loop

 private:
  struct Message {
    std::vector<std::byte> key;
    Payload payload;
    size_t cost = 0;
  };
  struct Line {
    std::deque<Message> waiting;
    size_t bytes = 0;   // waiting
    size_t in_use = 0;  // held by the receiver
    bool stalled = false;
  };
  bool HasRoom(MessageClass message_class, size_t cost) const MR_REQUIRES(mutex_);
  bool Take(Message& out, MessageClass& message_class);
  void DeliverSoon();

  const PeerAddress from_;
  const std::shared_ptr<InProcessCore> to_;
  const DataPlaneLimits limits_;
  Mutex mutex_;
  CondVar room_;
  std::array<Line, kMessageClasses> lines_ MR_GUARDED_BY(mutex_);
  bool closed_ MR_GUARDED_BY(mutex_) = false;
  bool delivering_ MR_GUARDED_BY(mutex_) = false;
};

// A pull in progress: the owner's serving thread fills it; the first of several events ends it.
class InProcessPull {
 public:
  InProcessPull(PullId id, PeerAddress from, std::span<std::byte> destination, PullCallback done)
      : id_(id), from_(std::move(from)), destination_(destination), done_(std::move(done)) {}

  PullId id() const { return id_; }
  const PeerAddress& from() const { return from_; }
  size_t room() const { return destination_.size(); }
  // False when the pull has ended: nothing was written.
  bool Write(std::span<const std::byte> bytes);
  // The callback, on the first call only; call it without holding a lock.
  PullCallback End();
  uint64_t written() const { return written_; }

  std::optional<EventLoop::Timer> timer;  // the reader's loop

 private:
  const PullId id_;
  const PeerAddress from_;
  const std::span<std::byte> destination_;
  Mutex mutex_;
  PullCallback done_ MR_GUARDED_BY(mutex_);
  std::atomic<uint64_t> written_ = 0;
};

class InProcessCore : public std::enable_shared_from_this<InProcessCore> {
 public:
  InProcessCore(std::shared_ptr<InProcessNetwork> network, InProcessDataPlaneOptions options,
                DataPlaneEvents events);

  void Start();
  void Stop();
  // For a peer that has stopped, was replaced or was forgotten.
  void OnGone(const PeerAddress& peer, const Status& reason);

  Result<std::shared_ptr<InProcessChannel>> ChannelTo(const PeerAddress& peer);
  void Pull(PullId id, const PeerAddress& from, std::span<const std::byte> request,
            std::span<std::byte> destination, Duration limit, PullCallback done);
  void CancelPull(PullId id, const Status& why);
  void Forget(uint64_t incarnation);
  bool Knows(uint64_t incarnation);  // has sent to it or heard from it
  void Met(const PeerAddress& peer);
  bool Refuses(uint64_t incarnation);

  PeerAddress self;
  const DataPlaneLimits limits;
  const DataPlaneEvents events;
  DataCounters counters;
  RegionTable regions;
  SharedTable shared;
  EventLoop loop;
  std::atomic<uint64_t> pulls_made = 0;

 private:
  void Serve(const std::shared_ptr<InProcessCore>& owner, std::shared_ptr<InProcessPull> pull,
             const std::vector<std::byte>& request);
  void Finish(const std::shared_ptr<InProcessPull>& pull, const Status& status);

  const std::shared_ptr<InProcessNetwork> network_;
  WorkPool pool_;
  Mutex mutex_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, std::shared_ptr<InProcessChannel>> channels_ MR_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, PeerAddress> met_ MR_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> forgotten_ MR_GUARDED_BY(mutex_);
  std::deque<uint64_t> forgotten_order_ MR_GUARDED_BY(mutex_);
  std::unordered_map<PullId, std::shared_ptr<InProcessPull>> pulls_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::net
