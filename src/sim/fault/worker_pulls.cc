// Pulls: KV that another worker holds, box by box. The source checks handle and lease for every
// box. A pull that breaks off stays partially written, and the controller is notified.
#include <algorithm>
#include <utility>

#include "sim/fault/worker.h"

namespace millrace::sim::fault {
namespace {

constexpr int kTokensPerBox = 8;
constexpr Duration kPullDeadline = Duration::Seconds(3);

}  // namespace

void Worker::Do(cluster::StartPull& action) {
  const TransferId id = action.pull.transfer;
  Pull& pull = pulls_[id];
  pull.start = std::move(action);
  pull.started = world_.now();
  world_.Timer(options_.place, kPullDeadline, TimerKind::kPullDeadline, id.value());
  const PullKv& what = pull.start.pull;
  const auto [first_head, end_head] = stages_.at(pull.start.shard)->kv_heads();
  std::vector<cluster::KvHolder> holders;
  for (const KvSource& source : what.sources) holders.push_back({source.layers, source.rank});
  if (what.first_token == what.end_token) return EndPull(id, OkStatus());
  const auto pieces =
      cluster::CoverKv({pull.start.layers, first_head, end_head, what.first_token, what.end_token},
                       holders, options_.model.heads);
  if (!pieces.ok()) return EndPull(id, pieces.status());
  for (const cluster::KvPiece& piece : *pieces) {
    for (int layer = piece.box.layers.begin; layer < piece.box.layers.end; ++layer) {
      for (int t = what.first_token; t < what.end_token; t += kTokensPerBox) {
        stage::KvBox box = piece.box;
        box.layers = {layer, layer + 1};
        box.first_token = t;
        box.end_token = std::min(t + kTokensPerBox, what.end_token);
        AskSource(id, what.sources[piece.source], box);
      }
    }
  }
}

// Called when the KV has arrived: imported KV drops the activations that were cached for its
// blocks.
bool Worker::AskForRows(TransferId id) {
  Pull& pull = pulls_.at(id);
  if (std::exchange(pull.activations_asked, true)) return false;
  const auto activations =
      cluster::ActivationsToPull(pull.start.layers, pull.start.pull, options_.incarnation);
  if (activations) AskSource(id, pull.start.pull.sources[activations->source], activations->box);
  return activations.has_value();
}

void Worker::AskSource(TransferId id, const KvSource& source, const stage::KvBox& box) {
  const uint64_t part = next_part_++;
  ++pulls_.at(id).parts_left;
  SendTo(source.from, Channel::kBulk, PullAsk{part, source.handle, box}, 96);
  const NetworkConnectionId connection = peers_.at({source.from.incarnation, Channel::kBulk});
  pull_parts_.emplace(part, PullPart{id, box, connection});
}

void Worker::OnAsk(NetworkConnectionId connection, const PullAsk& ask) {
  PullAnswer answer{ask.part, OkStatus(), {}};
  const auto lease = kv_.BeginPull(ask.handle, ask.box, world_.now());
  answer.status = lease.status();
  if (lease.ok()) {
    answer.bytes.resize(lease->stage->KvBytes(ask.box));
    const Status read = lease->Read(ask.box, answer.bytes);
    const Status held = kv_.EndPull(lease->ticket);
    answer.status = read.ok() ? held : read;
  }
  ++(answer.status.ok() ? audit_.pulls_served : audit_.pulls_refused);
  const size_t bytes = 64 + answer.bytes.size();
  world_.network().Send(connection, options_.place, std::move(answer), bytes, world_.now());
}

void Worker::OnAnswer(PullAnswer& answer) {
  const auto part = pull_parts_.find(answer.part);
  if (part == pull_parts_.end()) return;
  const PullPart what = part->second;
  pull_parts_.erase(part);
  const auto found = pulls_.find(what.transfer);
  if (found == pulls_.end()) return;
  Pull& pull = found->second;
  const bool activations = what.box.layers.size() == 0;
  if (activations && !answer.status.ok()) return EndPull(what.transfer, OkStatus());
  if (!answer.status.ok()) return EndPull(what.transfer, answer.status);
  const bool missed = world_.defect() == Defect::kMissBox && what.box.first_token == 0 &&
                      what.box.layers.begin == 1;
  const bool wrong = world_.defect() == Defect::kWrongActivations && activations;
  if (missed || wrong) answer.bytes.assign(answer.bytes.size(), std::byte{});
  const Status written =
      keepers_.at(pull.start.shard)
          ->WriteKv(pull.start.pull.pipeline, what.box, pull.start.pull.blocks, answer.bytes);
  if (!written.ok()) return EndPull(what.transfer, written);
  pull.bytes += std::ssize(answer.bytes);
  if (--pull.parts_left == 0 && !AskForRows(what.transfer)) EndPull(what.transfer, OkStatus());
}

void Worker::EndPull(TransferId id, Status status) {
  const auto found = pulls_.find(id);
  if (found == pulls_.end()) return;
  if (!status.ok()) ++audit_.pulls_failed;
  PullDone done{id, std::move(status), found->second.bytes,
                (world_.now() - found->second.started).seconds()};
  const cluster::StartPull& what = found->second.start;
  if (const auto keeper = keepers_.find(what.shard); keeper != keepers_.end()) {
    done.activations =
        keeper->second->HoldsActivations(what.pull.pipeline, what.layers.end, what.pull.blocks,
                                         what.pull.first_token, what.pull.end_token);
  }
  pulls_.erase(found);
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
