// The accepting side of a connection: receives messages and returns credit, serves pulls. Owned by
// the plane while it is open.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "net/data/link.h"
#include "net/data/served_pull.h"

namespace millrace::net {

class IncomingLink : public Link {
 public:
  // `where` it comes from; used in log lines.
  IncomingLink(LinkHost& host, std::string where);

  void Start(UniqueFd socket);  // the loop's thread

  // Unset until the hello is over.
  const std::optional<PeerAddress>& peer() const { return peer_; }
  const std::string& where() const { return where_; }

  // Shared memory was released: notifies the reader if it may have mapped it. The loop's thread.
  void SharedGone(uint64_t number);

  // Returns credit for released payloads, from any thread: the link itself may be gone by then.
  class CreditAccount {
   public:
    void Return(MessageClass message_class, size_t bytes);

    Mutex mutex;
    IncomingLink* link MR_GUARDED_BY(mutex) = nullptr;  // null once it is closed
    std::array<std::atomic<size_t>, kMessageClasses> returned = {};
    std::array<size_t, kMessageClasses> worth_telling = {};
  };

 private:
  struct Assembly {  // of an incoming message, one per class
    bool active = false;
    uint64_t next_id = 0;
    size_t done = 0, total = 0;
    std::vector<std::byte> key;
    std::shared_ptr<struct ReceivedMessage> message;
  };
  struct Control {
    FrameHeader header;
    std::shared_ptr<const std::vector<std::byte>> payload;
  };

  bool NextFrame(OutFrame& out) override;
  void OnConnected() override;
  Status OnHello(std::span<const std::byte> message) override;
  void OnClosed(const Status& reason) override;
  Status OnFrameStart(const FrameHeader& header) override;
  std::span<std::byte> PlaceFor(const FrameHeader& header, size_t at) override;
  Status OnFrameEnd(const FrameHeader& header) override;

  Status StartMessage(const FrameHeader& header, Assembly& assembly);
  Status ContinueMessage(const FrameHeader& header, Assembly& assembly);
  Status Charge(MessageClass message_class, size_t bytes);
  void Deliver(MessageClass message_class, Assembly& assembly);

  Status StartPull(const FrameHeader& header);
  void OnSource(uint64_t id, Result<PullSource> source);  // a serving thread
  void MakeChunk(std::shared_ptr<ServedPull> pull, ServedPull::Chunk chunk);
  void BeginSending(const std::shared_ptr<ServedPull>& pull);  // a serving thread
  void OfferDirect(const std::shared_ptr<ServedPull>& pull);   // a serving thread
  void WatchLeases();                                          // the loop's thread
  void SumDirect(const std::shared_ptr<ServedPull>& pull);
  void EndPull(uint64_t id, const Status& status);  // any thread
  void DropPull(uint64_t id);                       // any thread
  void AddSum(const ServedPull& pull) MR_REQUIRES(queue_mutex_);
  bool NextOfPulls(OutFrame& out) MR_REQUIRES(queue_mutex_);
  void AddControl(const FrameHeader& header, std::vector<std::byte> payload)
      MR_REQUIRES(queue_mutex_);
  void AddEnd(uint64_t id, const Status& status, uint64_t bytes) MR_REQUIRES(queue_mutex_);

  const std::string where_;
  const std::shared_ptr<CreditAccount> account_;
  std::optional<PeerAddress> peer_;
  Challenge challenge_;
  bool direct_ = false;  // on this host, same user

  // Used on the loop's thread.
  std::array<Assembly, kMessageClasses> assemblies_;
  std::vector<std::byte> request_;
  uint64_t last_pull_id_ = 0;
  std::optional<EventLoop::Timer> lease_timer_;

  Mutex queue_mutex_;
  std::deque<Control> control_ MR_GUARDED_BY(queue_mutex_);
  std::array<size_t, kMessageClasses> in_use_ MR_GUARDED_BY(queue_mutex_) = {};
  std::map<uint64_t, std::shared_ptr<ServedPull>> pulls_ MR_GUARDED_BY(queue_mutex_);
  // Handler calls in progress, including those of dropped pulls.
  size_t handling_ MR_GUARDED_BY(queue_mutex_) = 0;
  // Numbers of shared memory that the reader may have mapped.
  std::set<uint64_t> shared_told_ MR_GUARDED_BY(queue_mutex_);
  // Pulls that have something to send, now or soon.
  std::deque<std::shared_ptr<ServedPull>> turn_ MR_GUARDED_BY(queue_mutex_);
};

}  // namespace millrace::net
