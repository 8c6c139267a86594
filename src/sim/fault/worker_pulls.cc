// Pulls: KV that another worker holds, box by box. The source checks handle and lease when it
// serves; what is half there when something breaks stays half there, and the controller is told.
#include <algorithm>
#include <utility>

#include "sim/fault/worker.h"

namespace millrace::sim::fault {
namespace {

constexpr int kTokensPerBox = 8;
constexpr Duration kPullDeadline = Duration::Seconds(3);

LayerRange Common(LayerRange a, LayerRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

}  // namespace

void Worker::Do(cluster::StartPull& action) {
  const TransferId id = action.pull.transfer;
  Pull& pull = pulls_[id];
  pull.start = std::move(action);
  pull.started = world_.now();
  world_.Timer(options_.place, kPullDeadline, TimerKind::kPullDeadline, id.value());
  const PullKv& what = pull.start.pull;
  const auto [first_head, end_head] = stages_.at(pull.start.shard)->kv_heads();
  // Each layer and head from the first source that has it.
  int64_t wanted = int64_t{pull.start.layers.size()} * (end_head - first_head);
  for (int layer = pull.start.layers.begin; layer < pull.start.layers.end; ++layer) {
    int head = first_head;
    while (head < end_head) {
      const auto source = std::ranges::find_if(what.sources, [&](const KvSource& s) {
        const int heads = options_.model.heads;
        return layer >= s.layers.begin && layer < s.layers.end &&
               head >= s.rank.rank * heads / s.rank.size &&
               head < (s.rank.rank + 1) * heads / s.rank.size;
      });
      if (source == what.sources.end()) break;
      const int last = (source->rank.rank + 1) * options_.model.heads / source->rank.size;
      const int until = std::min(end_head, last);
      for (int t = what.first_token; t < what.end_token; t += kTokensPerBox) {
        AskSource(
            id, *source,
            {{layer, layer + 1}, head, until, t, std::min(t + kTokensPerBox, what.end_token)});
      }
      wanted -= until - head;
      head = until;
    }
  }
  if (wanted > 0) return EndPull(id, InvalidArgument("no source has all of it"));
  if (pull.parts_left == 0) EndPull(id, OkStatus());
}

void Worker::AskSource(TransferId id, const KvSource& source, const engine::KvBox& box) {
  const uint64_t part = next_part_++;
  ++pulls_.at(id).parts_left;
  SendTo(source.from, Channel::kBulk, PullAsk{part, source.handle, box}, 96);
  const ConnectionId connection = peers_.at({source.from.incarnation, Channel::kBulk});
  pull_parts_.emplace(part, PullPart{id, box, connection});
}

void Worker::OnAsk(ConnectionId connection, const PullAsk& ask) {
  PullAnswer answer{ask.part, OkStatus(), {}};
  const auto found = exposures_.find(ask.handle.nonce);
  const bool valid = found != exposures_.end() && found->second.kv.handle == ask.handle &&
                     world_.now() <= found->second.expires;
  if (!valid) {
    ++audit_.pulls_refused;
    answer.status = NotFound("no such KV here, or its lease has ended");
  } else if (ask.box.end_token > found->second.kv.tokens ||
             Common(ask.box.layers, found->second.layers) != ask.box.layers) {
    ++audit_.pulls_refused;
    answer.status = InvalidArgument("more than is exposed");
  } else {
    const engine::HashStage& stage = *stages_.at(found->second.shard);
    answer.bytes.resize(stage.KvBytes(ask.box));
    answer.status = stage.ReadKv(ask.handle.lane, ask.box, found->second.kv.blocks, answer.bytes);
    ++(answer.status.ok() ? audit_.pulls_served : audit_.pulls_refused);
  }
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
  if (!answer.status.ok()) return EndPull(what.transfer, answer.status);
  const bool missed = world_.defect() == Defect::kMissBox && what.box.first_token == 0 &&
                      what.box.layers.begin == 1;
  if (missed) answer.bytes.assign(answer.bytes.size(), std::byte{});
  const Status written =
      stages_.at(pull.start.shard)
          ->WriteKv(pull.start.pull.lane, what.box, pull.start.pull.blocks, answer.bytes);
  if (!written.ok()) return EndPull(what.transfer, written);
  pull.bytes += std::ssize(answer.bytes);
  if (--pull.parts_left == 0) EndPull(what.transfer, OkStatus());
}

void Worker::EndPull(TransferId id, Status status) {
  const auto found = pulls_.find(id);
  if (found == pulls_.end()) return;
  if (!status.ok()) ++audit_.pulls_failed;
  const PullDone done{id, std::move(status), found->second.bytes,
                      (world_.now() - found->second.started).seconds()};
  pulls_.erase(found);
  std::erase_if(pull_parts_, [&](const auto& part) { return part.second.transfer == id; });
  core_.PullEnded(done);
}

void Worker::Do(cluster::Expose& action) {
  Exposure& exposure = exposures_[action.kv.handle.nonce];
  exposure = {action.shard, action.layers, std::move(action.kv), {}};
  exposure.expires = world_.now() + exposure.kv.lease;
}

void Worker::Do(cluster::Unexpose& action) { exposures_.erase(action.handle.nonce); }

}  // namespace millrace::sim::fault
