// Network: modelled connections between the processes of the fault lab. A connection delivers in
// order, like TCP; what is sent while its link is cut or its receiver is stopped arrives late and
// all at once. Different connections of one pair are independent: rows overtake plans.
//
// A process is a place (0: the controller); who lives there changes, connections do not outlive
// either end. One thread; the lab calls, the lab is told when something is due.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "cluster/worker_core.h"
#include "core/worker_messages.h"
#include "engine/stage.h"

namespace millrace::sim::fault {

struct Rows {
  LaneId lane;
  StepId step;
  cluster::RowBytes rows;
};
struct PullAsk {
  uint64_t part = 0;  // of the asker
  KvHandle handle;
  engine::KvBox box;
};
struct PullAnswer {
  uint64_t part = 0;
  Status status;
  std::vector<std::byte> bytes;
};
using Payload = std::variant<std::monostate, ToWorker, ToController, Heartbeat, PeerMessage, Rows,
                             PullAsk, PullAnswer>;

enum class Channel : uint8_t { kSession, kHeartbeat, kPeer, kDecodeRows, kPrefillRows, kBulk };

using ConnectionId = uint32_t;

// What one side of a connection is due to see. No payload: the connection is gone.
struct Delivery {
  ConnectionId connection = 0;
  int to = 0;
  Channel channel = Channel::kSession;
  std::optional<Payload> payload;
};

struct NetworkOptions {
  Duration latency = Duration::Micros(300);
  Duration jitter = Duration::Micros(400);
  // Unacknowledged for so long: the sender gives the connection up (TCP_USER_TIMEOUT).
  Duration user_timeout = Duration::Seconds(2);
};

class Network {
 public:
  // When to call Pump or GiveUp next.
  struct Due {
    Time at;
    enum class What : uint8_t { kPump, kGiveUp, kStray } what = What::kPump;
    uint32_t connection = 0;
    int side = 0;
    uint32_t generation = 0;
  };

  Network(int places, const NetworkOptions& options, uint64_t seed);

  // From `from` to `to`; whether anybody lives there shows later.
  ConnectionId Connect(int from, int to, Channel channel, Time now);
  bool open(ConnectionId id, int at) const;
  void Send(ConnectionId id, int from, Payload payload, size_t bytes, Time now);
  // This side is done with it: what it sent still arrives, what is under way to it does not.
  void Close(ConnectionId id, int by, Time now);
  // Broken in the middle: what was under way is lost; both sides hear of it when links allow.
  void Reset(ConnectionId id, Time now);
  // The process there is no more. `quietly`: nobody is told; peers find out by their timeouts.
  void Kill(int place, bool quietly, Time now);
  void Revive(int place) { life_[place] = Life::kAlive; }

  // Nothing is delivered to a stopped process.
  void Stop(int place, bool stopped, Time now);
  void Cut(int from, int to, Time now);
  void Mend(int from, int to, Time now);
  // Extra latency on a link; zero: as it was.
  void Slow(int from, int to, Duration extra);
  // Messages on a link are seen twice with this probability, the second time much later.
  void Duplicate(int from, int to, double probability);
  void ResetLink(int from, int to, Time now);

  // What is due on that side, if it may be delivered now.
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
    std::vector<Item> inbox;  // from `head` on
    size_t head = 0;
    Time last_at;
    bool pumping = false;  // a Due is outstanding
  };
  struct Connection {
    Channel channel = Channel::kSession;
    std::array<Side, 2> sides;  // 0 connected, 1 accepted
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
  void Push(ConnectionId id, int side, Item item);
  void SchedulePump(ConnectionId id, int side, Time at);
  void ScheduleGiveUp(ConnectionId id, Time now);
  void Unblock(int to, Time now);
  void LoseSide(ConnectionId id, int side, bool locally, Time now);
  void Shut(ConnectionId id, int side);
  template <typename Do>
  void ForEachBetween(int a, int b, Do act);

  int places_;
  NetworkOptions options_;
  Rng rng_;
  std::vector<Link> links_;
  enum class Life : uint8_t { kAlive, kDead, kVanished };  // vanished: nobody answers
  std::vector<bool> stopped_;
  std::vector<Life> life_;
  std::vector<Connection> connections_;
  std::vector<ConnectionId> live_;
  std::vector<Delivery> strays_;
  std::vector<Due> due_;
  uint64_t messages_ = 0, duplicates_ = 0;
};

}  // namespace millrace::sim::fault
