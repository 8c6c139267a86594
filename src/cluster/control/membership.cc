#include "cluster/control/membership.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/sha256.h"

namespace millrace::cluster {
namespace {

constexpr size_t kFingerprintDigits = 16;

// An empty expectation matches anything. A worker with an empty value has no model yet and will get
// this one.
Status Compare(std::string_view what, const std::string& expected, const std::string& got,
               std::string_view cure = "") {
  if (expected.empty() || got.empty() || expected == got) return OkStatus();
  return FailedPrecondition(
      fmt::format("{}: this cluster has {}, the worker has {}{}", what, expected, got, cure));
}

constexpr std::string_view kSameBits =
    "; its answers would have other bits. Give all workers the same --activations and the same "
    "version of Millrace and of the C library";

}  // namespace

Status Membership::CheckJoin(const Join& join) const {
  const WorkerIdentity& mine = options_.identity;
  const WorkerIdentity& its = join.identity;
  MR_RETURN_IF_ERROR(CheckProtocol(mine.protocol, its.protocol));
  MR_RETURN_IF_ERROR(Compare("model fingerprint", mine.model_fingerprint, its.model_fingerprint));
  // The workers that have joined set the numeric class, because all must compute the same bits.
  const auto other = std::ranges::find_if(
      workers_, [&](const auto& entry) { return entry.second.join.name != join.name; });
  const WorkerIdentity& others = other == workers_.end() ? mine : other->second.join.identity;
  MR_RETURN_IF_ERROR(Compare("numeric class", others.numeric_class, its.numeric_class, kSameBits));
  MR_RETURN_IF_ERROR(Compare(
      "KV layout", mine.kv_layout.empty() ? others.kv_layout : mine.kv_layout, its.kv_layout));
  if (join.name.empty()) return InvalidArgument("the worker has no name");
  if (workers_.size() >= MembershipOptions::kWorkersMax) {
    return ResourceExhausted(
        fmt::format("{} workers have joined, which is the limit", workers_.size()));
  }
  return OkStatus();
}

std::string Membership::BitsFingerprint() const {
  WorkerIdentity bits = options_.identity;
  for (const auto& [id, worker] : workers_) {
    const WorkerIdentity& its = worker.join.identity;
    if (bits.model_fingerprint.empty()) bits.model_fingerprint = its.model_fingerprint;
    if (bits.numeric_class.empty()) bits.numeric_class = its.numeric_class;
    if (bits.kv_layout.empty()) bits.kv_layout = its.kv_layout;
  }
  if (bits.model_fingerprint.empty() || bits.numeric_class.empty()) return "";
  const std::string all =
      fmt::format("{}\n{}\n{}", bits.model_fingerprint, bits.numeric_class, bits.kv_layout);
  return "fp_" + Hex(Sha256Of(all)).substr(0, kFingerprintDigits);
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

const Membership::Worker& Membership::Add(WorkerId id, ConnectionId connection, Join join,
                                          Time now) {
  MR_CHECK(connections_.emplace(connection, id).second) << "a session has one worker";
  const auto [added, is_new] = workers_.try_emplace(id);
  MR_CHECK(is_new) << "worker " << id << " is a member";
  Worker& worker = added->second;
  worker.id = id;
  worker.connection = connection;
  worker.address = join.address;
  worker.address.worker = id;
  worker.last_beat = now;
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
  }
  worker->beat = beat;
  worker->last_beat = now;
  return true;
}

bool Membership::Alive(WorkerId id, Time now) const {
  const Duration limit{MembershipOptions::kAliveBeats * options_.heartbeat_every.ns};
  return now - workers_.at(id).last_beat < limit;
}

std::vector<std::pair<WorkerId, Status>> Membership::Lost(Time now) const {
  std::vector<std::pair<WorkerId, Status>> lost;
  for (const auto& [id, worker] : workers_) {
    const Duration silent = now - worker.last_beat;
    if (silent > options_.silent_limit) {
      lost.emplace_back(id, Unavailable(fmt::format("silent for {:.1f} s", silent.seconds())));
      continue;
    }
    double limit_s = options_.first_batch_limit.seconds();
    if (worker.beat.steps_done > 0) {
      limit_s =
          std::max(options_.stuck_limit.seconds(),
                   options_.stuck_factor * static_cast<double>(worker.longest_batch_ms) / 1e3);
    }
    const double age_s = static_cast<double>(worker.beat.batch_age_ms) / 1e3;
    if (age_s > limit_s) {
      lost.emplace_back(
          id, Unavailable(fmt::format("its batch has run for {:.1f} s, the limit is {:.1f} s",
                                      age_s, limit_s)));
    }
  }
  return lost;
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

void Membership::CheckIntegrity() const {
  MR_CHECK(connections_.size() == workers_.size()) << "sessions and workers differ";
}

}  // namespace millrace::cluster
