#include "cluster/control/parts/membership.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/host_port.h"
#include "base/log.h"
#include "cluster/control/parts/edge_flows.h"

namespace millrace::cluster {
namespace {

// An empty expectation matches anything. A worker with an empty value has no model yet and will get
// this one.
Status Compare(std::string_view what, const std::string& expected, const std::string& got) {
  if (expected.empty() || got.empty() || expected == got) return OkStatus();
  return FailedPrecondition(
      fmt::format("{}: this cluster has {}, the worker has {}", what, expected, got));
}

}  // namespace

Status Membership::CheckJoin(const Join& join) const {
  const WorkerIdentity& mine = options_.identity;
  const WorkerIdentity& its = join.identity;
  MR_RETURN_IF_ERROR(CheckProtocol(mine.protocol, its.protocol));
  MR_RETURN_IF_ERROR(Compare("model fingerprint", mine.model_fingerprint, its.model_fingerprint));
  for (const auto& [id, other] : workers_) {
    const WorkerIdentity& others = other.join.identity;
    if (other.join.name == join.name || others.numeric_class != its.numeric_class) continue;
    MR_RETURN_IF_ERROR(Compare("KV layout", others.kv_layout, its.kv_layout));
  }
  for (const std::string& told : {join.address.control, join.address.data}) {
    const Result<HostPort> where = ParseHostPort(told);
    if (!where.ok() || !IsEveryAddress(where->host)) continue;
    return InvalidArgument(fmt::format(
        "others cannot reach the worker at {}: give it --advertise with a name of its machine",
        Printable(told)));
  }
  if (join.name.empty()) return InvalidArgument("the worker has no name");
  if (join.name == EdgeFlows::kCoordinator) {
    return InvalidArgument(fmt::format(
        "plans and links name the controller {}; give the worker another name", join.name));
  }
  if (workers_.size() >= MembershipOptions::kWorkersMax) {
    return ResourceExhausted(
        fmt::format("{} workers have joined, which is the limit", workers_.size()));
  }
  if (!classes_.HasRoomFor(FingerprintOf(join))) {
    return ResourceExhausted(fmt::format(
        "workers of {} numeric classes have joined so far, which is the limit; restart the "
        "controller",
        BitClasses::kClassesMax));
  }
  return OkStatus();
}

// A worker without a model gets the layout of its class, or the controller's.
std::string Membership::FingerprintOf(const Join& join) const {
  std::string model = options_.identity.model_fingerprint, layout = join.identity.kv_layout;
  if (layout.empty()) layout = options_.identity.kv_layout;
  if (model.empty()) model = join.identity.model_fingerprint;
  for (const auto& [id, other] : workers_) {
    const WorkerIdentity& its = other.join.identity;
    if (other.join.name == join.name) continue;  // the same worker, in an earlier session
    if (its.numeric_class == join.identity.numeric_class) return classes_.fingerprint(other.bits);
    if (model.empty()) model = its.model_fingerprint;
  }
  return BitsFingerprint(model, join.identity.numeric_class, layout);
}

std::string Membership::FingerprintOf(BitClass bits) const {
  const bool known = !options_.identity.model_fingerprint.empty() ||
                     std::ranges::any_of(workers_, [](const auto& entry) {
                       return !entry.second.join.identity.model_fingerprint.empty();
                     });
  return known ? classes_.fingerprint(bits) : "";
}

std::string Membership::NumericClassOf(BitClass bits) const {
  const auto found =
      std::ranges::find_if(workers_, [&](const auto& entry) { return entry.second.bits == bits; });
  return found == workers_.end() ? "" : found->second.join.identity.numeric_class;
}

// Two processes with one name must not replace each other forever, so a worker whose heartbeats
// arrive keeps its name. Otherwise the newer process gets it, because the older may be hung.
Status Membership::CheckName(const Join& join, Time now) const {
  const auto older = std::ranges::find_if(
      workers_, [&](const auto& entry) { return entry.second.join.name == join.name; });
  if (older == workers_.end()) return OkStatus();
  const Worker& worker = older->second;
  const bool same = worker.address.incarnation == join.address.incarnation;
  if (same || !Alive(worker.id, now)) return OkStatus();
  return Unavailable(fmt::format(
      "another process has joined as {} and sent a heartbeat {:.1f} s ago; give each worker a "
      "unique name",
      Printable(join.name), (now - worker.last_beat).seconds()));
}

Status Membership::CanConstrain(const SamplingParams& params) const {
  if (params.grammar.empty() || options_.token_table) return OkStatus();
  return FailedPrecondition("output cannot be constrained: the controller has no tokenizer");
}

const TokenTable* Membership::TokensFor(const Worker& worker) const {
  const bool needed = options_.token_table &&
                      worker.join.token_table != options_.token_table->digest &&
                      worker.join.identity.protocol.newest >= kProtocolGrammars;
  return needed ? &*options_.token_table : nullptr;
}

const Membership::Worker& Membership::Add(WorkerId id, ConnectionId connection, Join join,
                                          Time now) {
  MR_CHECK(connections_.emplace(connection, id).second) << "a session has one worker";
  const std::string fingerprint = FingerprintOf(join);
  const auto [added, is_new] = workers_.try_emplace(id);
  MR_CHECK(is_new) << "worker " << id << " is a member";
  Worker& worker = added->second;
  worker.bits = *classes_.Of(fingerprint);
  worker.id = id;
  worker.connection = connection;
  worker.address = join.address;
  worker.address.worker = id;
  worker.last_beat = worker.moved = now;
  std::erase_if(still_, [&](const Still& still) { return still.name == join.name; });
  worker.join = std::move(join);
  return worker;
}

Membership::Worker Membership::Remove(WorkerId id) {
  Worker worker = std::move(workers_.at(id));
  workers_.erase(id);
  connections_.erase(worker.connection);
  return worker;
}

bool Membership::Beat(ConnectionId from, const Heartbeat& beat, Time now) {
  Worker* worker = Find(from);
  if (worker == nullptr || beat.incarnation != worker->address.incarnation ||
      beat.sequence <= worker->beat.sequence) {
    return false;
  }
  // A batch that has ended since ran at least as long as its last reported age.
  if (beat.steps_done > worker->beat.steps_done) {
    worker->longest_batch_ms = std::max(worker->longest_batch_ms, worker->beat.batch_age_ms);
    worker->moved = now;
  }
  worker->beat = beat;
  worker->last_beat = now;
  return true;
}

bool Membership::Alive(WorkerId id, Time now) const {
  const Duration limit{MembershipOptions::kAliveBeats * options_.heartbeat_every.ns};
  return now - workers_.at(id).last_beat < limit;
}

Duration Membership::BatchLimit(const Worker& worker) const {
  if (worker.beat.steps_done == 0) return options_.first_batch_limit;
  const double longest_s = static_cast<double>(worker.longest_batch_ms) / 1e3;
  return std::max(options_.stuck_limit, Duration::Seconds(options_.stuck_factor * longest_s));
}

// A rank that waits for another one in its batch is not what stands still. The deadline of their
// collective ends that wait.
std::vector<Membership::Loss> Membership::Lost(Time now) {
  const Duration apart = ticked_ ? now - *ticked_ : Duration{};
  ticked_ = now;
  stood_still_ = apart > MembershipOptions::kPausedFrom ? apart : Duration{};
  if (stood_still_ > Duration{}) {
    MR_LOG(warn, "this process stood still for {:.1f} s", apart.seconds());
    for (auto& [id, worker] : workers_) worker.last_beat = std::min(now, worker.last_beat + apart);
  }
  std::vector<Loss> lost;
  for (const auto& [id, worker] : workers_) {
    const Duration silent = now - worker.last_beat;
    if (silent > options_.silent_limit) {
      lost.push_back({id, Unavailable(fmt::format("silent for {:.1f} s", silent.seconds()))});
      continue;
    }
    const Duration still = Duration::Millis(worker.beat.still_ms);
    if (still > options_.still_limit) {
      lost.push_back({id,
                      Unavailable(fmt::format("its computing thread has not moved for {:.1f} s, "
                                              "the limit is {:.1f} s",
                                              still.seconds(), options_.still_limit.seconds())),
                      true});
      continue;
    }
    const Duration age = Duration::Millis(worker.beat.batch_age_ms), limit = BatchLimit(worker);
    if (age <= limit || worker.beat.waits_for_ranks) continue;
    lost.push_back({id,
                    Unavailable(fmt::format("its batch has run for {:.1f} s, the limit is {:.1f} s",
                                            age.seconds(), limit.seconds())),
                    true});
  }
  return lost;
}

void Membership::NoteStill(WorkerId id, const Status& reason) {
  if (still_.size() == MembershipOptions::kStillMax) still_.erase(still_.begin());
  still_.push_back({workers_.at(id).join.name, reason.message()});
}

Membership::Worker* Membership::Find(ConnectionId connection) {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? nullptr : &workers_.at(found->second);
}

Membership::Worker* Membership::Find(std::string_view name) {
  const auto found = std::ranges::find_if(
      workers_, [&](const auto& entry) { return entry.second.join.name == name; });
  return found == workers_.end() ? nullptr : &found->second;
}

const Membership::Worker* Membership::Find(WorkerId id) const {
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : &found->second;
}

int Membership::usable() const {
  return static_cast<int>(
      std::ranges::count_if(workers_, [](const auto& entry) { return entry.second.Usable(); }));
}

std::map<BitClass, int> Membership::usable_by_class() const {
  std::map<BitClass, int> usable;
  for (const auto& [id, worker] : workers_) {
    if (worker.Usable()) ++usable[worker.bits];
  }
  return usable;
}

void Membership::CheckIntegrity() const {
  MR_CHECK(connections_.size() == workers_.size()) << "sessions and workers differ";
}

}  // namespace millrace::cluster
