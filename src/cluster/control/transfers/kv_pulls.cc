#include "cluster/control/transfers/kv_pulls.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/rng.h"

namespace millrace::cluster {
namespace {

constexpr int64_t kPulledBytesMax = int64_t{1} << 48;  // of one pull, to be believed

}  // namespace

bool FetchedLayers::HasAllKv() const {
  return std::ranges::all_of(has_kv, [](bool has) { return has; });
}

void FetchedLayers::KeepCommon(const FetchedLayers& other) {
  for (size_t l = 0; l < has_kv.size(); ++l) has_kv[l] = has_kv[l] && other.has_kv[l];
  std::erase_if(activations, [&](int layer) { return !other.activations.contains(layer); });
}

LayerRange FetchedLayers::Lacking() const {
  LayerRange lacking;
  for (int l = 0; l < std::ssize(has_kv); ++l) {
    if (has_kv[static_cast<size_t>(l)]) continue;
    if (lacking.size() == 0) lacking.begin = l;
    lacking.end = l + 1;
  }
  while (lacking.begin > 0 && !activations.contains(lacking.begin)) --lacking.begin;
  return lacking;
}

KvHandle KvPulls::NewHandle(PipelineId pipeline) {
  KvHandle handle{.pipeline = pipeline, .generation = ids_.Next()};
  for (size_t half = 0; half < 2; ++half) {
    const uint64_t bits = HashCounter(options_.secret, handle.generation * 2 + half);
    for (size_t i = 0; i < 8; ++i) {
      handle.nonce[half * 8 + i] = static_cast<uint8_t>(bits >> (8 * i));
    }
  }
  return handle;
}

bool KvPulls::Start(const Source& source, PipelineId to, const std::vector<PipelineHop>& hops,
                    const sched::KvPull& scheduler_pull, How how) {
  Pull pull{.to = to, .pull = scheduler_pull, .source = source.hops, .how = how};
  pull.exported = {NewHandle(source.pipeline), source.blocks, source.tokens, options_.lease};
  std::vector<bool>& has_kv = pull.layers.has_kv;
  has_kv.resize(static_cast<size_t>(options_.num_layers));
  std::vector<KvSource> sources;
  for (const PipelineHop& holder : source.hops) {
    const int ranks = static_cast<int>(holder.ranks.size());
    for (int rank = 0; rank < ranks; ++rank) {
      sources.push_back({holder.ranks[static_cast<size_t>(rank)],
                         pull.exported.handle,
                         holder.layers,
                         {rank, ranks}});
    }
    for (int l = holder.layers.begin; l < holder.layers.end; ++l) {
      has_kv[static_cast<size_t>(l)] = !source.lacking || !source.lacking->Contains(l);
    }
  }
  const bool any = std::ranges::any_of(source.hops, [&](const PipelineHop& holder) {
    return std::ranges::any_of(
        hops, [&](const PipelineHop& hop) { return holder.layers.Overlap(hop.layers).size() > 0; });
  });
  if (!any) return false;
  pull.at_once = !how.doubtful && pull.layers.HasAllKv();
  Export(pull);
  const uint64_t id = ids_.Next();
  for (const PipelineHop& hop : hops) {
    if (pull.at_once) SendParts(id, pull, hop, hop.layers, sources);
    if (pull.at_once) continue;
    for (const PipelineHop& holder : source.hops) {
      SendParts(id, pull, hop, holder.layers.Overlap(hop.layers), sources);
    }
  }
  pulls_.emplace(id, std::move(pull));
  return true;
}

// Sends a PullKv to every rank of the hop, for layers that the hop has.
void KvPulls::SendParts(uint64_t id, Pull& pull, const PipelineHop& hop, LayerRange layers,
                        const std::vector<KvSource>& sources) {
  if (layers.size() == 0) return;
  const int ranks = static_cast<int>(hop.ranks.size());
  // Activations that leave the hop are needed by rank 0 only, which sends to the next hop.
  // Activations that enter a layer within the hop are needed by every rank.
  const bool leave = layers.end == hop.layers.end;
  pull.activations_due[layers.end] = leave ? 1 : ranks;
  PullKv order{.pipeline = pull.to,
               .blocks = pull.pull.blocks,
               .first_token = pull.pull.first_token,
               .end_token = pull.pull.end_token,
               .background = pull.how.background};
  if (!pull.at_once) order.layers = layers;
  std::ranges::copy_if(sources, std::back_inserter(order.sources), [&](const KvSource& source) {
    return source.layers.Overlap(layers).size() > 0;
  });
  for (int rank = 0; rank < ranks; ++rank) {
    const bool takes = !leave || rank == 0;
    order.transfer = TransferId(ids_.Next());
    order.activations = takes ? ActivationsOf(pull, layers.end, leave) : PulledActivations::kNone;
    transfers_.emplace(order.transfer, id);
    const WorkerId puller = hop.ranks[static_cast<size_t>(rank)].worker;
    pull.due.emplace(order.transfer, Part{puller, layers, takes});
    outbox_.Send(puller, order);
  }
}

// The activations to pull that enter the layer, which follows the layers of one PullKv.
PulledActivations KvPulls::ActivationsOf(const Pull& pull, int layer, bool leave_hop) const {
  if (layer == options_.num_layers) return PulledActivations::kNone;
  const bool computes_behind = !pull.layers.has_kv[static_cast<size_t>(layer)];
  if (computes_behind || pull.how.doubtful) return PulledActivations::kAny;
  return leave_hop ? pull.how.activations : PulledActivations::kNone;
}

std::optional<WorkerId> KvPulls::PullerOf(TransferId transfer) const {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return std::nullopt;
  return pulls_.at(found->second).due.at(transfer).puller;
}

std::optional<KvPulls::Ended> KvPulls::Done(const PullDone& done) {
  const auto transfer = transfers_.find(done.transfer);
  const auto found = pulls_.find(transfer->second);
  transfers_.erase(transfer);
  Pull& pull = found->second;
  const Part part = pull.due.extract(done.transfer).mapped();
  if (!done.status.ok()) {
    MR_LOG(warn, "pull of request {}'s KV failed: {}", pull.pull.id.value(),
           Printable(done.status.message()));
    for (int l = part.layers.begin; l < part.layers.end; ++l) {
      pull.layers.has_kv[static_cast<size_t>(l)] = false;
    }
  } else {
    pull.arrived.push_back({part.layers, std::clamp<int64_t>(done.bytes, 0, kPulledBytesMax),
                            std::isfinite(done.seconds) ? std::max(0.0, done.seconds) : 0});
    const bool activations = done.activations && part.activations;
    if (activations && --pull.activations_due[part.layers.end] == 0) {
      pull.layers.activations.insert(part.layers.end);
    }
  }
  if (!pull.due.empty()) return std::nullopt;
  Release(pull);
  Ended ended{pull.exported.handle.pipeline, pull.to,      std::move(pull.pull),
              std::move(pull.layers),        pull.at_once, std::move(pull.arrived)};
  pulls_.erase(found);
  return ended;
}

bool KvPulls::Reads(RequestId id, PipelineId from) const {
  return std::ranges::any_of(pulls_,
                             [&](const auto& entry) { return entry.second.Reads(id, from); });
}

void KvPulls::Renew(RequestId id, PipelineId from) {
  for (const auto& [pull_id, pull] : pulls_) {
    if (pull.Reads(id, from)) Export(pull);
  }
}

void KvPulls::Release(RequestId id, PipelineId from) {
  for (auto& [pull_id, pull] : pulls_) {
    if (pull.Reads(id, from)) Release(pull);
  }
}

void KvPulls::DropInto(PipelineId to) {
  for (auto it = pulls_.begin(); it != pulls_.end();) {
    Pull& pull = it->second;
    if (pull.to != to) {
      ++it;
      continue;
    }
    for (const auto& [transfer, part] : pull.due) transfers_.erase(transfer);
    Release(pull);
    it = pulls_.erase(it);
  }
}

void KvPulls::Export(const Pull& pull) {
  for (const PipelineHop& hop : pull.source) {
    for (const WorkerAddress& rank : hop.ranks) outbox_.Send(rank.worker, pull.exported);
  }
}

void KvPulls::Release(Pull& pull) {
  if (std::exchange(pull.released, true)) return;
  for (const PipelineHop& hop : pull.source) {
    for (const WorkerAddress& rank : hop.ranks) {
      outbox_.Send(rank.worker, ReleaseKv{pull.exported.handle});
    }
  }
}

}  // namespace millrace::cluster
