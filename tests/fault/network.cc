#include "tests/fault/network.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::sim::fault {
namespace {

constexpr double kBytesPerSecond = 1e8;
constexpr Duration kDuplicateDelayMax = Duration::Millis(1500);

// Messages that the protocol tolerates twice. A stream's greeting is not among them, nor are
// notices, nor the batch orders of a tensor-parallel stage: their streams keep order or end.
bool MaySeeTwice(const Payload& payload) {
  if (const auto* up = std::get_if<ToController>(&payload)) {
    return !std::holds_alternative<Join>(*up) && !std::holds_alternative<Leaving>(*up) &&
           !std::holds_alternative<MayLeave>(*up) && !std::holds_alternative<Staying>(*up);
  }
  if (const auto* peer = std::get_if<PeerMessage>(&payload)) {
    return std::holds_alternative<PipelineStep>(*peer);
  }
  return std::holds_alternative<Rows>(payload);
}

}  // namespace

Network::Network(int places, const NetworkOptions& options, uint64_t seed)
    : places_(places),
      options_(options),
      rng_(seed),
      links_(static_cast<size_t>(places) * places),
      stopped_(places),
      life_(places, Life::kAlive) {}

template <typename Do>
void Network::ForEachBetween(int a, int b, Do act) {
  const std::vector<NetworkConnectionId> live = live_;
  for (NetworkConnectionId id : live) {
    const auto& sides = connections_[id].sides;
    if ((sides[0].place == a && sides[1].place == b) ||
        (sides[0].place == b && sides[1].place == a)) {
      act(id);
    }
  }
}

bool Network::Cut(const Connection& c) const {
  const int a = c.sides[0].place, b = c.sides[1].place;
  return link(a, b).cuts > 0 || link(b, a).cuts > 0;
}

bool Network::Blocked(const Connection& c, int side) const {
  const int to = c.sides[side].place;
  if (stopped_[to]) return true;
  const Side& s = c.sides[side];
  const bool local = s.head < s.inbox.size() && s.inbox[s.head].local;
  return !local && link(c.sides[1 - side].place, to).cuts > 0;
}

NetworkConnectionId Network::Connect(int from, int to, Channel channel, Time now) {
  const auto id = static_cast<NetworkConnectionId>(connections_.size());
  Connection& c = connections_.emplace_back();
  c.channel = channel;
  c.sides[0].place = from;
  c.sides[1].place = to;
  live_.push_back(id);
  if (Cut(c)) ScheduleGiveUp(id, now);
  if (life_[to] == Life::kAlive) return id;
  const bool vanished = life_[to] == Life::kVanished;
  Shut(id, 1);
  LoseSide(id, 0, vanished, vanished ? now + options_.user_timeout : now);
  return id;
}

bool Network::open(NetworkConnectionId id, int at) const {
  const Connection& c = connections_[id];
  return c.sides[SideOf(c, at)].open;
}

Time Network::ArrivalAt(Connection& c, int side, size_t bytes, Time now) {
  Side& to = c.sides[side];
  const Link& l = link(c.sides[1 - side].place, to.place);
  const int64_t jitter = rng_.Between(0, options_.jitter.ns);
  const auto carry = static_cast<int64_t>(static_cast<double>(bytes) / kBytesPerSecond * 1e9);
  const Time at = now + options_.latency + Duration::Nanos(jitter + carry) + l.extra;
  return to.last_at = std::max(to.last_at, at);
}

void Network::Send(NetworkConnectionId id, int from, Payload payload, size_t bytes, Time now) {
  Connection& c = connections_[id];
  const int side = 1 - SideOf(c, from);
  if (!c.sides[1 - side].open || !c.sides[side].open) return;
  ++messages_;
  const Time at = ArrivalAt(c, side, bytes, now);
  const double twice = link(from, c.sides[side].place).duplicate;
  if (twice > 0 && MaySeeTwice(payload) && rng_.Uniform() < twice) {
    ++duplicates_;
    const Time again = at + Duration::Nanos(rng_.Between(1, kDuplicateDelayMax.ns));
    due_.push_back({again, Due::What::kStray, static_cast<uint32_t>(strays_.size()), side, 0});
    strays_.push_back({id, c.sides[side].place, c.channel, payload});
  }
  Push(id, side, {at, std::move(payload)});
}

void Network::Push(NetworkConnectionId id, int side, Item item) {
  Side& s = connections_[id].sides[side];
  if (s.head > 0 && s.head == s.inbox.size()) {
    s.inbox.clear();
    s.head = 0;
  }
  s.inbox.push_back(std::move(item));
  SchedulePump(id, side, s.inbox[s.head].at);
}

void Network::SchedulePump(NetworkConnectionId id, int side, Time at) {
  Connection& c = connections_[id];
  Side& s = c.sides[side];
  if (s.pumping || s.head == s.inbox.size() || Blocked(c, side)) return;
  s.pumping = true;
  due_.push_back({at, Due::What::kPump, id, side, 0});
}

void Network::ScheduleGiveUp(NetworkConnectionId id, Time now) {
  const Connection& c = connections_[id];
  const int a = c.sides[0].place, b = c.sides[1].place;
  const uint32_t generation = link(a, b).times_cut + link(b, a).times_cut;
  due_.push_back({now + options_.user_timeout, Due::What::kGiveUp, id, 0, generation});
}

void Network::LoseSide(NetworkConnectionId id, int side, bool locally, Time now) {
  Connection& c = connections_[id];
  Side& s = c.sides[side];
  if (!s.open) return;
  if (locally) {
    s.inbox.clear();
    s.head = 0;
    Push(id, side, {now + Duration::Nanos(rng_.Between(0, options_.jitter.ns)), {}, true});
    return;
  }
  Push(id, side, {ArrivalAt(c, side, 0, now), {}, false});
}

void Network::Shut(NetworkConnectionId id, int side) {
  Connection& c = connections_[id];
  c.sides[side].open = false;
  c.sides[side].inbox = {};
  c.sides[side].head = 0;
  if (!c.sides[0].open && !c.sides[1].open) std::erase(live_, id);
}

void Network::Close(NetworkConnectionId id, int by, Time now) {
  const int side = SideOf(connections_[id], by);
  if (!connections_[id].sides[side].open) return;
  Shut(id, side);
  LoseSide(id, 1 - side, false, now);
}

void Network::Reset(NetworkConnectionId id, Time now) {
  for (int side = 0; side < 2; ++side) {
    Side& s = connections_[id].sides[side];
    s.inbox.erase(s.inbox.begin() + static_cast<std::ptrdiff_t>(s.head), s.inbox.end());
    LoseSide(id, side, false, now);
  }
}

void Network::Kill(int place, bool quietly, Time now) {
  life_[place] = quietly ? Life::kVanished : Life::kDead;
  stopped_[place] = false;
  const std::vector<NetworkConnectionId> live = live_;
  for (NetworkConnectionId id : live) {
    Connection& c = connections_[id];
    if (c.sides[0].place != place && c.sides[1].place != place) continue;
    const int side = SideOf(c, place);
    if (!c.sides[side].open) continue;
    Shut(id, side);
    LoseSide(id, 1 - side, quietly, quietly ? now + options_.user_timeout : now);
  }
}

void Network::Stop(int place, bool stopped, Time now) {
  stopped_[place] = stopped;
  if (!stopped) Unblock(place, now);
}

void Network::Unblock(int to, Time now) {
  for (NetworkConnectionId id : live_) {
    for (int side = 0; side < 2; ++side) {
      const Side& s = connections_[id].sides[side];
      if (s.place != to || s.head == s.inbox.size()) continue;
      SchedulePump(id, side, std::max(now, s.inbox[s.head].at));
    }
  }
}

void Network::Cut(int from, int to, Time now) {
  ++link(from, to).cuts;
  ++link(from, to).times_cut;
  ForEachBetween(from, to, [&](NetworkConnectionId id) { ScheduleGiveUp(id, now); });
}

void Network::Mend(int from, int to, Time now) {
  MR_CHECK(link(from, to).cuts > 0);
  if (--link(from, to).cuts == 0) Unblock(to, now);
}

void Network::Slow(int from, int to, Duration extra) { link(from, to).extra = extra; }

void Network::Duplicate(int from, int to, double probability) {
  link(from, to).duplicate = probability;
}

void Network::ResetLink(int from, int to, Time now) {
  ForEachBetween(from, to, [&](NetworkConnectionId id) { Reset(id, now); });
}

std::optional<Delivery> Network::Pump(const Due& due, Time now) {
  if (due.what == Due::What::kStray) {
    Delivery& stray = strays_[due.connection];
    if (stopped_[stray.to] || life_[stray.to] != Life::kAlive) return std::nullopt;
    if (Cut(connections_[stray.connection]))
      return std::nullopt;  // the first copy may still wait
                            // there
    // Within a session it is a second copy; elsewhere it may come from a process that is gone.
    if (stray.channel == Channel::kSession && !open(stray.connection, stray.to)) {
      return std::nullopt;
    }
    return std::move(stray);
  }
  Connection& c = connections_[due.connection];
  if (due.what == Due::What::kGiveUp) {
    const int a = c.sides[0].place, b = c.sides[1].place;
    if (due.generation != link(a, b).times_cut + link(b, a).times_cut || !Cut(c)) {
      return std::nullopt;
    }
    for (int side = 0; side < 2; ++side) LoseSide(due.connection, side, true, now);
    return std::nullopt;
  }
  Side& s = c.sides[due.side];
  s.pumping = false;
  if (!s.open || s.head == s.inbox.size() || Blocked(c, due.side)) return std::nullopt;
  if (s.inbox[s.head].at > now) {
    SchedulePump(due.connection, due.side, s.inbox[s.head].at);
    return std::nullopt;
  }
  Delivery delivery{due.connection, s.place, c.channel, std::move(s.inbox[s.head].payload)};
  ++s.head;
  if (!delivery.payload) {
    Shut(due.connection, due.side);
  } else if (s.head < s.inbox.size()) {
    SchedulePump(due.connection, due.side, std::max(now, s.inbox[s.head].at));
  }
  return delivery;
}

void Network::TakeDue(std::vector<Due>& due) {
  due.insert(due.end(), due_.begin(), due_.end());
  due_.clear();
}

}  // namespace millrace::sim::fault
