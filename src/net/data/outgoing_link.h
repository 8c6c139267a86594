// The connecting side of a connection: sends messages, asks for pulls. Owned by the plane while it
// stands.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "net/data/direct_read.h"
#include "net/data/link.h"
#include "net/data/mapped_memory.h"
#include "net/data/message_queue.h"
#include "net/data/remote_memory.h"

namespace millrace::net {

class OutgoingLink : public Link {
 public:
  OutgoingLink(LinkHost& host, PeerAddress peer);

  const PeerAddress& peer() const { return peer_; }
  // Was it connected, so that its end is the loss of a peer that was there?
  bool was_ready() const { return was_ready_; }

  // ---- any thread

  Status Push(MessageClass message_class, std::span<const std::byte> key, const Payload& payload);
  Status PushWithin(Time deadline, MessageClass message_class, std::span<const std::byte> key,
                    const Payload& payload);

  // ---- the loop's thread

  void Start();
  void StartPull(PullId id, std::vector<std::byte> request, std::span<std::byte> destination,
                 Time deadline, PullCallback done);
  // False: it is not one of ours, or over.
  bool EndPull(PullId id, const Status& status);

 private:
  // Of a pull that is read directly.
  enum class Way : uint8_t { kMemory, kShared, kRemote };
  struct Pull {
    PullId id;
    std::vector<std::byte> request;  // kept for further attempts when direct reading fails
    std::span<std::byte> destination;
    Time deadline;
    EventLoop::Timer timer;
    PullCallback done;
    uint64_t received = 0;
    DirectWays asked;  // the owner may answer with these
    // Begun when segments have come, over when all is read and the sum is known.
    std::unique_ptr<DirectRead> direct;
    Way way = Way::kMemory;        // of `direct`
    std::optional<Status> ending;  // over as soon as nothing writes to the destination any more
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
  Status OnDirect(const FrameHeader& header, Pull& pull);
  Status OnShared(const FrameHeader& header, Pull& pull);
  Status OnRemote(const FrameHeader& header, Pull& pull);
  Result<std::unique_ptr<DirectRead>> ReadFromRemote(uint64_t wire_id, RemoteOffer offer,
                                                     uint64_t total);
  void ReadDirect(uint64_t wire_id);
  Status OnSum(const FrameHeader& header, Pull& pull);
  void FinishDirect(uint64_t wire_id, Pull& pull);
  void Release(uint64_t wire_id);
  void AskAgain(uint64_t wire_id, Way failed, const Status& why);
  // At once, or as soon as nothing writes to the destination any more.
  void Finish(uint64_t wire_id, const Status& why);
  Status OnPullEnd(const FrameHeader& header);

  const PeerAddress peer_;
  std::atomic<bool> was_ready_ = false;

  std::mutex queue_mutex_;  // the next four
  std::condition_variable room_;
  MessageQueue messages_;
  std::deque<Control> control_;
  Status end_;  // not ok: closed

  // The loop's thread.
  std::optional<Challenge> challenge_;
  Answer answer_;
  DirectWays ways_;  // to the peer's memory that have not failed yet
  int64_t process_id_ = 0;
  std::optional<MappedMemory> mapped_;  // from the welcome on, until it is closed
  std::unique_ptr<RemotePeer> remote_;  // from the first offer on, until it is closed
  std::vector<std::byte> remote_name_;  // what it was connected to
  size_t pulls_max_ = 0;
  uint64_t next_wire_id_ = 1;
  std::unordered_map<uint64_t, Pull> pulls_;  // by wire id
  std::vector<uint64_t> unsent_;              // asked for before the hello was over
  std::vector<std::byte> small_;              // payload of frames other than data
  std::vector<std::byte> discard_;            // data of pulls that are over
};

}  // namespace millrace::net
