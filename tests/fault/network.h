// Network: modelled connections between the processes of the fault lab. A connection delivers in
// order, like TCP; messages sent while its link is cut or its receiver is stopped arrive late and
// all at once. Different connections of one pair are independent: activations may overtake plans.
//
// A process is at a place (0: the controller). The process at a place changes; a connection ends
// with either of its processes. Owned by the lab, which schedules the events of TakeDue. One
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "cluster/worker/worker_core.h"
#include "core/worker_messages.h"
#include "stage/stage.h"

namespace millrace::sim::fault {

struct Rows {
  PipelineId pipeline;
  StepId step;
  cluster::ActivationBytes activations;
};
struct PullAsk {
  uint64_t part = 0;  // the requester's
  KvHandle handle;
  stage::TransferItem item;
};
struct PullAnswer {
  uint64_t part = 0;
  Status status;
  std::vector<std::byte> bytes;
};
using Payload = std::variant<std::monostate, ToWorker, ToController, Heartbeat, PeerMessage, Rows,
                             PullAsk, PullAnswer>;

enum class Channel : uint8_t { kSession, kHeartbeat, kPeer, kDecodeRows, kPrefillRows, kBulk };

using NetworkConnectionId = uint32_t;

// The next event for one side of a connection. No payload: the connection is gone.
struct Delivery {
  NetworkConnectionId connection = 0;
  int to = 0;
  Channel channel = Channel::kSession;
  std::optional<Payload> payload;
};

struct NetworkOptions {
  Duration latency = Duration::Micros(300);
  Duration jitter = Duration::Micros(400);
  // After this time without an acknowledgement the sender gives the connection up
  // (TCP_USER_TIMEOUT).
  Duration user_timeout = Duration::Seconds(2);
};

class Network {
 public:
  // When to call Pump or GiveUp again.
  struct Due {
    Time at;
    enum class What : uint8_t { kPump, kGiveUp, kStray } what = What::kPump;
    uint32_t connection = 0;
    int side = 0;
    uint32_t generation = 0;
  };

  Network(int places, const NetworkOptions& options, uint64_t seed);

  // From `from` to `to`; whether a process is there shows later.
  NetworkConnectionId Connect(int from, int to, Channel channel, Time now);
  bool open(NetworkConnectionId id, int at) const;
  void Send(NetworkConnectionId id, int from, Payload payload, size_t bytes, Time now);
  // This side closes it: what it sent still arrives, what is in transit to it does not.
  void Close(NetworkConnectionId id, int by, Time now);
  // Breaks it: what is in transit is lost; both sides are notified when links allow.
  void Reset(NetworkConnectionId id, Time now);
  // The process there has ended. `quietly`: peers are not notified and find out by their timeouts.
  void Kill(int place, bool quietly, Time now);
  void Revive(int place) { life_[place] = Life::kAlive; }

  // A stopped process receives nothing.
  void Stop(int place, bool stopped, Time now);
  void Cut(int from, int to, Time now);
  void Mend(int from, int to, Time now);
  // Adds latency to a link; zero: none.
  void Slow(int from, int to, Duration extra);
  // Messages on a link arrive twice with this probability, the second time much later.
  void Duplicate(int from, int to, double probability);
  void ResetLink(int from, int to, Time now);

  // The due event on that side, if it may be delivered now.
  std::optional<Delivery> Pump(const Due& due, Time now);
  // Events to be scheduled, since the last call.
  void TakeDue(std::vector<Due>& due);

  uint64_t messages() const { return messages_; }
  uint64_t duplicates() const { return duplicates_; }
  size_t connections_live() const { return live_.size(); }

 private:
  struct Item {
    Time at;
    std::optional<Payload> payload;
    bool local = false;  // needs no link: this side gives up by itself
  };
  struct Side {
    int place = 0;
    bool open = true;
    std::vector<Item> inbox;  // starts at `head`
    size_t head = 0;
    Time last_at;
    bool pumping = false;  // a Due is outstanding
  };
  struct Connection {
    Channel channel = Channel::kSession;
    std::array<Side, 2> sides;  // 0: connecting side, 1: accepting side
  };
  struct Link {
    int cuts = 0;
    uint32_t times_cut = 0;
    Duration extra;
    double duplicate = 0;
  };

  Link& link(int from, int to) { return links_[from * places_ + to]; }
  const Link& link(int from, int to) const { return links_[from * places_ + to]; }
  static int SideOf(const Connection& c, int place) { return c.sides[0].place == place ? 0 : 1; }
  bool Cut(const Connection& c) const;
  bool Blocked(const Connection& c, int side) const;
  Time ArrivalAt(Connection& c, int side, size_t bytes, Time now);
  void Push(NetworkConnectionId id, int side, Item item);
  void SchedulePump(NetworkConnectionId id, int side, Time at);
  void ScheduleGiveUp(NetworkConnectionId id, Time now);
  void Unblock(int to, Time now);
  void LoseSide(NetworkConnectionId id, int side, bool locally, Time now);
  void Shut(NetworkConnectionId id, int side);
  template <typename Do>
  void ForEachBetween(int a, int b, Do act);

  int places_;
  NetworkOptions options_;
  Rng rng_;
  std::vector<Link> links_;
  enum class Life : uint8_t { kAlive, kDead, kVanished };  // vanished: no reset is sent
  std::vector<bool> stopped_;
  std::vector<Life> life_;
  std::vector<Connection> connections_;
  std::vector<NetworkConnectionId> live_;
  std::vector<Delivery> strays_;
  std::vector<Due> due_;
  uint64_t messages_ = 0, duplicates_ = 0;
};

}  // namespace millrace::sim::fault
