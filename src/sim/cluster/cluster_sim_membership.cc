// Machines of ClusterSim that come and go. A worker process starts with the last of its stage's
// nodes, announces the notice of the first, and vanishes with the first.
#include <algorithm>
#include <utility>

#include "sim/cluster/cluster_sim.h"

namespace millrace::sim {

using What = MembershipChange::What;

namespace {

// When the machine of a notice vanishes, as its owner says; unset: it never does.
std::optional<Time> DeadlineOf(const std::vector<MembershipChange>& changes, size_t notice) {
  const MembershipChange& told = changes[notice];
  for (size_t i = notice; i < changes.size(); ++i) {
    const bool same = changes[i].instance == told.instance && changes[i].machine == told.machine;
    if (same && changes[i].what == What::kLost) return changes[i].at;
  }
  return std::nullopt;
}

}  // namespace

// The changes after the last request do not happen.
std::optional<Time> ClusterSim::NextChange() const {
  if (next_change_ == options_.membership.size()) return std::nullopt;
  return std::max(options_.membership[next_change_].at, now_);
}

// From the arrival of the machine until it takes requests.
Duration ClusterSim::LoadTimeOf(size_t change) const {
  const MembershipChange& came = options_.membership[change];
  for (size_t i = change; i < options_.membership.size(); ++i) {
    const MembershipChange& ready = options_.membership[i];
    const bool same = ready.instance == came.instance && ready.machine == came.machine;
    if (same && ready.what == What::kReady) return ready.at - came.at;
    if (same && ready.what == What::kLost) return ready.at - came.at;  // gone by then
  }
  return {};
}

void ClusterSim::Change() {
  const size_t index = next_change_++;
  const MembershipChange& change = options_.membership[index];
  const Time at = change.at;
  availability_.Apply(change, at);
  for (int place = 0; place < std::ssize(processes_); ++place) {
    const std::vector<NodeIndex>& nodes = places_[static_cast<size_t>(place)].nodes;
    if (std::ranges::find(nodes, change.instance) == nodes.end()) continue;
    Process& process = processes_[static_cast<size_t>(place)];
    switch (change.what) {
      case What::kCame: {
        const bool all = std::ranges::all_of(nodes, [&](int n) { return availability_.here(n); });
        if (!all || process.worker) break;
        const Duration load = LoadTimeOf(index);  // before time 0 the cluster starts
        StartWorker(place, load > Duration() ? load + (at - now_) : load);
        break;
      }
      case What::kReady: break;  // the process finds out by itself
      case What::kNotice:
        if (!process.worker || options_.on_notice == OnNotice::kFinish) break;
        process.worker->SetNotice({.origin = {NoticeSource::kUnknown, NoticeKind::kPreempt},
                                   .deadline = DeadlineOf(options_.membership, index)});
        Reap(place);
        break;
      case What::kLost:
        if (process.worker) EndWorker(place);
        break;
    }
  }
  NoteWaiting();
}

void ClusterSim::StartWorker(int place, Duration load_time) {
  Process& process = processes_[static_cast<size_t>(place)];
  ++process.life;
  process.ended = false;
  process.load_time = load_time;
  const Incarnation incarnation(next_incarnation_++);
  place_of_[incarnation] = place;
  process.worker = std::make_unique<ModelledWorker>(
      ModelledWorkerOptions{
          .name = places_[static_cast<size_t>(place)].name,
          .place = place,
          .incarnation = incarnation,
          .machine = options_.machines[static_cast<size_t>(place)],
          .load_time = load_time,
          .change_load_time =
              options_.workers == SimWorkers::kByNode ? options_.change_load_time : load_time,
          .activation_bytes_per_token = options_.activation_bytes_per_token,
          .kv_bytes_per_token_layer = options_.kv_bytes_per_token_layer,
          .max_num_seqs = options_.controller.scheduler.max_num_seqs,
          .max_num_batched_tokens = options_.controller.scheduler.max_num_batched_tokens},
      static_cast<WorkerWorld&>(*this));
  process.session = ConnectionId(next_session_++);
  sessions_[*process.session] = place;
  process.worker->Join();
  Reap(place);
}

void ClusterSim::EndWorker(int place) {
  Process& process = processes_[static_cast<size_t>(place)];
  const Incarnation gone = process.worker->incarnation();
  process.busy = BusyOf(process);
  process.use = UseOf(process);
  process.worker.reset();
  ++process.life;
  place_of_.erase(gone);
  LoseSession(place);
  for (int other = 0; other < std::ssize(processes_); ++other) {
    if (!processes_[static_cast<size_t>(other)].worker) continue;
    processes_[static_cast<size_t>(other)].worker->PeerGone(gone);
    Reap(other);
  }
}

// The controller hears of it when the last message has arrived.
void ClusterSim::LoseSession(int place) {
  Process& process = processes_[static_cast<size_t>(place)];
  if (!process.session) return;
  sessions_.erase(*process.session);
  Post(wires_.Up(place, 0, now_),
       {.place = place, .session = *std::exchange(process.session, {}), .what = SessionEnd{}});
}

// Counts the requests whose KV was lost with their pipelines, or before they could fetch it.
void ClusterSim::NoteLost(const std::vector<sched::RequestInfo>& before) {
  std::map<RequestId, int> here = std::exchange(drained_, {});
  for (const sched::RequestInfo& info : before) {
    if (info.computed_tokens > 0) here[info.id] = info.computed_tokens;
  }
  for (const auto& [id, tokens] : here) {
    const auto after = controller_->Inspect(id, now_);
    if (!after || after->computed_tokens > 0) continue;
    ++moves_.replayed;
    moves_.replayed_tokens += static_cast<uint64_t>(tokens);
  }
  NoteWaiting();
}

void ClusterSim::NoteDrained(const std::vector<sched::RequestInfo>& before) {
  for (const sched::RequestInfo& info : before) {
    const auto after = controller_->Inspect(info.id, now_);
    if (info.computed_tokens > 0 && after && after->computed_tokens == 0) {
      drained_[info.id] = info.computed_tokens;
    }
  }
}

void ClusterSim::NoteWaiting() {
  if (options_.membership.empty() || !controller_->Missing()) return;
  moves_.waited_most = std::max(moves_.waited_most, static_cast<uint64_t>(recorder_.alive()));
}

}  // namespace millrace::sim
