// Pulls: the production state machine of a pull (cluster/transfer/kv_pull.h) over modelled links.
// The source checks handle and lease of every ask. A pull that breaks off stays partially written,
// and the controller is notified.
#include <utility>

#include "tests/fault/worker.h"

namespace millrace::sim::fault {
namespace {

// Small parts, so that a pull takes many answers, and few retries, because each is an event.
constexpr cluster::KvPullLimits kPullLimits = {.chunk_bytes = 128,
                                               .part = Duration::Seconds(3),
                                               .export_poll = Duration::Millis(20),
                                               .export_delay = Duration::Seconds(1)};

}  // namespace

void Worker::Do(cluster::StartPull& action) {
  const TransferId id = action.pull.transfer;
  const auto stage = keepers_.find(action.shard);
  cluster::KvPull pull({options_.incarnation, {}}, action.layers,
                       stage == keepers_.end() ? nullptr : stage->second, std::move(action.pull),
                       kPullLimits, world_.now());
  pulls_.try_emplace(id, Pull{std::move(pull)});
  Advance(id);
}

// Sends what the pull asks for, and reports its end.
void Worker::Advance(TransferId id) {
  const auto found = pulls_.find(id);
  if (found == pulls_.end()) return;
  auto& [pull, timer] = found->second;
  pull.Tick(world_.now());
  while (const auto ask = pull.NextAsk(world_.now())) {
    const uint64_t part = next_part_++;
    SendTo(ask->source->from, Channel::kBulk, PullAsk{part, ask->source->handle, ask->item}, 96);
    const PeerKey peer{ask->source->from.incarnation, Channel::kBulk};
    pull_parts_.emplace(part, PullPart{id, ask->part, ask->item, peers_.at(peer)});
  }
  if (pull.ended()) return EndPull(id);
  const Time next = *pull.NextTime();
  if (timer && *timer <= next) return;
  timer = next;
  world_.Timer(options_.place, next - world_.now(), TimerKind::kPull, id.value());
}

void Worker::OnAsk(NetworkConnectionId connection, const PullAsk& ask) {
  PullAnswer answer{ask.part, OkStatus(), {}};
  const auto lease = kv_.BeginPull(ask.handle, ask.item, world_.now());
  answer.status = lease.status();
  if (lease.ok()) {
    answer.bytes.resize(lease->stage->Bytes(ask.item));
    const Status read = lease->Read(ask.item, answer.bytes);
    const Status held = kv_.EndPull(lease->ticket);
    answer.status = read.ok() ? held : read;
  }
  ++(answer.status.ok() ? audit_.pulls_served : audit_.pulls_refused);
  const size_t bytes = 64 + answer.bytes.size();
  world_.network().Send(connection, options_.place, std::move(answer), bytes, world_.now());
}

void Worker::OnAnswer(PullAnswer& answer) {
  auto part = pull_parts_.extract(answer.part);
  if (!part) return;
  const PullPart& what = part.mapped();
  const auto found = pulls_.find(what.transfer);
  if (found == pulls_.end()) return;
  Spoil(what.item, answer.bytes);
  found->second.core.Answered(what.part, answer.status, answer.bytes, world_.now());
  Advance(what.transfer);
}

// Applies a test's defect to bytes that have arrived.
void Worker::Spoil(const stage::TransferItem& item, std::vector<std::byte>& bytes) const {
  const auto* box = std::get_if<stage::KvBox>(&item);
  const bool missed = world_.defect() == Defect::kMissBox && box != nullptr &&
                      box->first_token == 0 && box->layers.Contains(1);
  const bool wrong = world_.defect() == Defect::kWrongActivations && box == nullptr;
  if (missed || wrong) bytes.assign(bytes.size(), std::byte{});
}

// Its asks in progress will get no answer.
void Worker::SourceLost(NetworkConnectionId connection) {
  std::vector<std::pair<TransferId, uint64_t>> lost;
  std::erase_if(pull_parts_, [&](const auto& entry) {
    const PullPart& part = entry.second;
    if (part.connection != connection) return false;
    lost.emplace_back(part.transfer, part.part);
    return true;
  });
  const Status gone = Unavailable("the source's connection is gone");
  for (const auto& [transfer, part] : lost) {
    const auto found = pulls_.find(transfer);
    if (found == pulls_.end()) continue;
    found->second.core.Answered(part, gone, {}, world_.now());
    Advance(transfer);
  }
}

void Worker::EndPull(TransferId id) {
  const auto pull = pulls_.extract(id);
  const PullDone done = pull.mapped().core.Done(world_.now());
  if (!done.status.ok()) ++audit_.pulls_failed;
  std::erase_if(pull_parts_, [&](const auto& part) { return part.second.transfer == id; });
  core_.PullEnded(done);
}

void Worker::Do(cluster::Export& action) {
  const auto stage = keepers_.find(action.shard);
  kv_.Sweep(world_.now());
  (void)kv_.Export(action.layers, stage == keepers_.end() ? nullptr : stage->second, action.kv,
                   world_.now());
}

void Worker::Do(cluster::Unexport& action) { kv_.Release(action.handle); }

}  // namespace millrace::sim::fault
