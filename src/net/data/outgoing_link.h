// The connecting side of a connection: sends messages, asks for pulls. Owned by the plane while it
// is open.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "net/data/direct_read.h"
#include "net/data/link.h"
#include "net/data/mapped_memory.h"
#include "net/data/message_queue.h"

namespace millrace::net {

class OutgoingLink : public Link {
 public:
  OutgoingLink(LinkHost& host, PeerAddress peer);

  const PeerAddress& peer() const { return peer_; }
  // Whether it was connected, so that its end is the loss of a peer.
  bool was_ready() const { return was_ready_; }

  // ---- any thread

  Status Push(MessageClass message_class, std::span<const std::byte> key, const Payload& payload);
  Status PushWithin(Time deadline, MessageClass message_class, std::span<const std::byte> key,
                    const Payload& payload);

  // ---- the loop's thread

  void Start();
  void StartPull(PullId id, std::vector<std::byte> request, std::span<std::byte> destination,
                 Time deadline, PullCallback done);
  // False: not a pull of this link, or already ended.
  bool EndPull(PullId id, const Status& status);

 private:
  struct Pull {
    PullId id;
    std::vector<std::byte> request;  // kept for another attempt when mapping fails
    std::span<std::byte> destination;
    Time deadline;
    EventLoop::Timer timer;
    PullCallback done;
    uint64_t received = 0;
    bool may_map = false;  // the owner may name shared memory instead of sending
    // From the arrival of segments; done when all bytes are read and the sum is known.
    std::optional<DirectRead> direct;
  };
  struct Control {
    FrameHeader header;
    std::shared_ptr<const std::vector<std::byte>> payload;
  };

  bool NextFrame(OutFrame& out) override;
  void OnConnected() override {}  // the other side speaks first
  Status OnHello(std::span<const std::byte> message) override;
  void OnClosed(const Status& reason) override;
  Status OnFrameStart(const FrameHeader& header) override;
  std::span<std::byte> PlaceFor(const FrameHeader& header, size_t at) override;
  Status OnFrameEnd(const FrameHeader& header) override;

  Status AnswerChallenge(std::span<const std::byte> message);
  void Connect();
  void AddControl(const FrameHeader& header, std::vector<std::byte> payload);
  void PushControl(const FrameHeader& header, std::vector<std::byte> payload);
  void Request(uint64_t wire_id, Pull& pull);
  Status OnShared(const FrameHeader& header, Pull& pull);
  void ReadDirect(uint64_t wire_id);
  Status OnSum(const FrameHeader& header, Pull& pull);
  void FinishDirect(uint64_t wire_id, Pull& pull);
  void Release(uint64_t wire_id);
  void AskAgain(uint64_t wire_id, const Status& why);
  void Finish(uint64_t wire_id, const Status& status);
  Status OnPullEnd(const FrameHeader& header);

  const PeerAddress peer_;
  std::atomic<bool> was_ready_ = false;

  Mutex queue_mutex_;
  CondVar room_;
  MessageQueue messages_ MR_GUARDED_BY(queue_mutex_);
  std::deque<Control> control_ MR_GUARDED_BY(queue_mutex_);
  Status end_ MR_GUARDED_BY(queue_mutex_);  // not ok: closed

  // Used on the loop's thread.
  std::optional<Challenge> challenge_;
  Answer answer_;
  bool may_map_ = false;  // what the peer shares: it is on this host, and mapping has not failed
  std::optional<MappedMemory> mapped_;  // from the welcome until it is closed
  size_t pulls_max_ = 0;
  uint64_t next_wire_id_ = 1;
  std::unordered_map<uint64_t, Pull> pulls_;  // by wire id
  std::vector<uint64_t> unsent_;              // requested before the hello was over
  std::vector<std::byte> small_;              // payload of frames other than data
  std::vector<std::byte> discard_;            // data of pulls that have ended
};

}  // namespace millrace::net
