// The DataPlane between processes: a listener, one loop, links. See net/data/data_plane.h. Owned by
// the process; any thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/mutex.h"
#include "net/data/incoming_link.h"
#include "net/data/link_host.h"
#include "net/data/outgoing_link.h"
#include "net/listener.h"

namespace millrace::net {

class TcpDataPlane final : public DataPlane, public LinkHost {
 public:
  static Result<std::unique_ptr<DataPlane>> Start(TcpDataPlaneOptions options,
                                                  DataPlaneEvents events);
  ~TcpDataPlane() override { Stop(); }

  const PeerAddress& self() const override { return LinkHost::self; }
  Status Send(const PeerAddress& to, MessageClass message_class, std::span<const std::byte> key,
              Payload payload) override;
  Status SendWithin(Duration limit, const PeerAddress& to, MessageClass message_class,
                    std::span<const std::byte> key, Payload payload) override;
  PullId Pull(const PeerAddress& from, std::span<const std::byte> request,
              std::span<std::byte> destination, Duration limit, PullCallback done) override;
  void CancelPull(PullId pull) override;
  Result<std::shared_ptr<SharedMemory>> AllocateShared(size_t bytes) override {
    return shared.Allocate(bytes);
  }
  void Forget(uint64_t incarnation) override;
  DataPlaneStats stats() const override { return counters.Read(); }
  void Stop() override;

 private:
  TcpDataPlane() = default;

  Result<std::shared_ptr<OutgoingLink>> LinkTo(const PeerAddress& peer);
  void Accept(UniqueFd socket, std::string where);
  void TellGone(uint64_t shared_number);
  Status Counted(const Status& status);

  bool Forgotten(uint64_t incarnation) override;
  void OnKnown(const std::shared_ptr<IncomingLink>& link) override;
  void OnIncomingEnd(IncomingLink& link, const Status& reason) override;
  void OnOutgoingEnd(OutgoingLink& link, const Status& reason) override;
  void LogStranger(const std::string& who, const Status& reason) override;

  std::unique_ptr<Listener> listener_;
  std::atomic<uint64_t> pulls_made_ = 0;

  Mutex mutex_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  // By incarnation.
  std::unordered_map<uint64_t, std::shared_ptr<OutgoingLink>> outgoing_ MR_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Time> lost_ MR_GUARDED_BY(mutex_);    // no new attempt before then
  std::unordered_set<std::string> endpoints_ MR_GUARDED_BY(mutex_);  // connected to before
  std::unordered_set<uint64_t> forgotten_ MR_GUARDED_BY(mutex_);
  std::deque<uint64_t> forgotten_order_ MR_GUARDED_BY(mutex_);

  // Used on the loop's thread.
  std::unordered_map<IncomingLink*, std::shared_ptr<IncomingLink>> incoming_;
  std::deque<IncomingLink*> strangers_;  // oldest first
  Time next_stranger_log_;
  uint64_t strangers_unlogged_ = 0;
};

}  // namespace millrace::net
