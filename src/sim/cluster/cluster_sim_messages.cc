// Messages of ClusterSim: what controller and workers send, and when it arrives.
#include <algorithm>
#include <utility>

#include "sim/cluster/cluster_sim.h"

namespace millrace::sim {
namespace {

constexpr Duration kJoinAgainAfter = Duration::Millis(100);

}  // namespace

void ClusterSim::Post(Time at, Message message) {
  const int slot = messages_.Take(std::move(message));
  if (at <= now_) {
    ready_.push_back(slot);
  } else {
    events_.Push(at, {.kind = Kind::kMessage, .x = static_cast<uint64_t>(slot)});
  }
}

void ClusterSim::Deliver(Message message) {
  if (auto* up = std::get_if<ToController>(&message.what)) {
    if (!std::holds_alternative<Leaving>(*up)) {
      controller_->Receive(message.session, std::move(*up), now_);
      return SettleController();
    }
    const auto before = controller_->InspectAll(now_);
    controller_->Receive(message.session, std::move(*up), now_);
    NoteDrained(before);
    return SettleController();
  }
  if (std::holds_alternative<SessionEnd>(message.what)) {
    const auto before = controller_->InspectAll(now_);
    controller_->ConnectionLost(message.session, Unavailable("its machine is gone"), now_);
    NoteLost(before);
    return SettleController();
  }
  Process& process = processes_[static_cast<size_t>(message.place)];
  if (process.life != message.life) return;
  if (auto* down = std::get_if<ToWorker>(&message.what)) {
    if (process.session != message.session) return;
    process.worker->Deliver(std::move(*down));
  } else {
    process.worker->Deliver(message.from, std::move(std::get<ToPeer>(message.what)));
  }
  Reap(message.place);
}

void ClusterSim::SendUp(int place, ToController message) {
  const Process& process = processes_[static_cast<size_t>(place)];
  if (!process.session) return;
  const auto* done = std::get_if<StepDone>(&message);
  const double bytes =
      done ? options_.token_bytes * static_cast<double>(done->result.sequences.size()) : 0;
  Post(wires_.Up(place, bytes, now_),
       {.place = place, .session = *process.session, .what = std::move(message)});
}

bool ClusterSim::SendToPeer(int place, Incarnation to, ToPeer message, double bytes) {
  const auto there = place_of_.find(to);
  if (there == place_of_.end()) return false;
  const std::optional<Time> at = wires_.Across(place, there->second, bytes, now_);
  if (!at) return false;
  Post(*at, {.place = there->second,
             .life = processes_[static_cast<size_t>(there->second)].life,
             .from = processes_[static_cast<size_t>(place)].worker->incarnation(),
             .what = std::move(message)});
  return true;
}

void ClusterSim::After(int place, Duration delay, WorkerTimer timer, uint64_t x) {
  events_.Push(now_ + delay, {.kind = Kind::kTimer,
                              .timer = timer,
                              .place = place,
                              .life = processes_[static_cast<size_t>(place)].life,
                              .x = x});
}

void ClusterSim::EndSession(int place, bool for_good) {
  Process& process = processes_[static_cast<size_t>(place)];
  LoseSession(place);
  process.ended = process.ended || for_good;
  if (for_good) return;
  events_.Push(now_ + kJoinAgainAfter,
               {.kind = Kind::kJoinAgain, .place = place, .life = process.life});
}

void ClusterSim::BatchStarted(int place, const cost::BatchShape& shape, Time end) {
  ++batches_;
  if (!on_batch) return;
  record_ = {.id = StepId(batches_), .batch = shape, .begin = {now_}, .end = {end}};
  on_batch(place, record_);
}

void ClusterSim::SettleController() {
  do {
    controller_->Advance(now_);
    actions_.clear();
    controller_->TakeActions(actions_);
    for (cluster::ControllerAction& action : actions_) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
    outputs_.clear();
    controller_->TakeOutputs(outputs_);
    for (RequestOutput& output : outputs_) Hear(output);
  } while (SubmitBacklog());
}

Duration ClusterSim::DelayOf(const StepPlan& plan) const {
  const ControllerOverhead& over = options_.overhead;
  const auto sequences = static_cast<double>(plan.sequences.size());
  const auto swapped = static_cast<double>(plan.swap_out.size() + plan.swap_in.size());
  double seconds = over.step_s + over.sequence_s * sequences + over.swap_block_s * swapped;
  if (plan.sequences.size() > plan.started.size()) {
    seconds += over.arrival_s * static_cast<double>(plan.started.size());
  }
  return Duration::Seconds(seconds);
}

void ClusterSim::Do(cluster::SendToWorker& action) {
  const auto session = sessions_.find(action.to);
  if (session == sessions_.end()) return;
  const int place = session->second;
  double bytes = 0;
  Duration delay;
  const auto* step = std::get_if<PipelineStep>(&action.message);
  if (step != nullptr && !step->plan->IsTest()) {
    ++steps_;
    bytes = options_.token_bytes * static_cast<double>(step->plan->tokens.size());
    delay = DelayOf(*step->plan);
  } else if (std::holds_alternative<PullKv>(action.message)) {
    NotePull(place);
  }
  Post(wires_.Down(place, bytes, delay, now_), {.place = place,
                                                .life = processes_[static_cast<size_t>(place)].life,
                                                .session = action.to,
                                                .what = std::move(action.message)});
}

void ClusterSim::Do(cluster::Disconnect& action) {
  const auto session = sessions_.find(action.connection);
  if (session == sessions_.end()) return;
  const int place = session->second;
  sessions_.erase(session);
  processes_[static_cast<size_t>(place)].session.reset();
}

// The controller's pulls do not name their requests. The request whose wait has ended is the first
// one handed over that pulls now.
void ClusterSim::NotePull(int place) {
  const bool by_stage = options_.workers == SimWorkers::kByStage;
  if (by_stage && options_.plan.stages[static_cast<size_t>(place)].layers.begin != 0) return;
  for (auto it = handed_.begin(); it != handed_.end(); ++it) {
    const auto info = controller_->Inspect(it->first, now_);
    if (!info || info->state != sched::RequestState::kPulling) continue;
    kv_wait_.Add((now_ - it->second).seconds());
    handed_.erase(it);
    return;
  }
}

// A process that has ended by itself.
void ClusterSim::Reap(int place) {
  if (processes_[static_cast<size_t>(place)].ended) EndWorker(place);
}

}  // namespace millrace::sim
