#include <fmt/format.h>

#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

using Addresses = google::protobuf::RepeatedPtrField<proto::WorkerAddress>;

void PutAddresses(const std::vector<WorkerAddress>& from, Addresses* to) {
  for (const WorkerAddress& address : from) ToProto(address, *to->Add());
}

Status TakeAddresses(std::string_view field, const Addresses& from, size_t max,
                     std::vector<WorkerAddress>& out) {
  MR_RETURN_IF_ERROR(CheckCount(field, static_cast<size_t>(from.size()), max));
  out.resize(static_cast<size_t>(from.size()));
  for (int i = 0; i < from.size(); ++i) {
    MR_RETURN_WITHIN(Element(field, i), FromProto(from[i], out[static_cast<size_t>(i)]));
  }
  return OkStatus();
}

// ---- to the wire

void Put(const Welcome& from, proto::ToWorker& to) {
  const auto& [worker, term, heartbeat_every, protocol, store] = from;
  proto::Welcome& out = *to.mutable_welcome();
  out.set_worker(worker.value());
  out.set_term(term.value());
  out.set_heartbeat_every_ns(static_cast<uint64_t>(heartbeat_every.ns));
  out.set_protocol_version(static_cast<uint32_t>(protocol.newest));
  out.set_oldest_protocol_version(static_cast<uint32_t>(protocol.oldest));
  if (store) out.set_store(*store);
}

void Put(const Refused& from, proto::ToWorker& to) {
  const auto& [reason, retry] = from;
  proto::Refused& out = *to.mutable_refused();
  ToProto(reason, *out.mutable_reason());
  out.set_retry(retry);
}

void Put(const LoadShard& from, proto::ToWorker& to) {
  const auto& [shard, group, layers, rank, ranks, sources, model_fingerprint, max_batched_tokens,
               max_model_len] = from;
  proto::LoadShard& out = *to.mutable_load_shard();
  out.set_shard(shard.value());
  out.set_group(group);
  ToProto(layers, *out.mutable_layers());
  ToProto(rank, *out.mutable_rank());
  PutAddresses(ranks, out.mutable_ranks());
  PutAddresses(sources, out.mutable_sources());
  out.set_model_fingerprint(model_fingerprint);
  out.set_max_batched_tokens(static_cast<uint32_t>(max_batched_tokens));
  out.set_max_model_len(static_cast<uint32_t>(max_model_len));
}

void Put(const TokenTable& from, proto::ToWorker& to) {
  const auto& [digest, bytes] = from;
  proto::TokenTable& out = *to.mutable_token_table();
  out.set_digest(digest);
  out.set_table(*bytes);
}

void Put(const UnloadShard& from, proto::ToWorker& to) {
  const auto& [shard] = from;
  to.mutable_unload_shard()->set_shard(shard.value());
}

void Put(const OpenPipeline& from, proto::ToWorker& to) {
  const auto& [pipeline, hops, hop, rank, block_size, num_blocks, num_host_blocks,
               max_batched_tokens, eos_token_ids, cache_activations_at, shares_memory] = from;
  proto::OpenPipeline& out = *to.mutable_open_pipeline();
  out.set_pipeline(pipeline.value());
  for (const auto& [layers, ranks, shards] : hops) {
    proto::PipelineHop& entry = *out.add_hops();
    ToProto(layers, *entry.mutable_layers());
    PutAddresses(ranks, entry.mutable_ranks());
    for (const ShardId shard : shards) entry.add_shards(shard.value());
  }
  out.set_hop(static_cast<uint32_t>(hop));
  out.set_rank(static_cast<uint32_t>(rank));
  out.set_block_size(static_cast<uint32_t>(block_size));
  out.set_num_blocks(static_cast<uint32_t>(num_blocks));
  out.set_num_host_blocks(static_cast<uint32_t>(num_host_blocks));
  out.set_max_batched_tokens(static_cast<uint32_t>(max_batched_tokens));
  out.mutable_eos_token_ids()->Add(eos_token_ids.begin(), eos_token_ids.end());
  out.mutable_cache_activations_at()->Add(cache_activations_at.begin(), cache_activations_at.end());
  out.set_shares_memory(shares_memory);
}

void Put(const ClosePipeline& from, proto::ToWorker& to) {
  const auto& [pipeline] = from;
  to.mutable_close_pipeline()->set_pipeline(pipeline.value());
}

void Put(const PipelineStep& from, proto::ToWorker& to) {
  ToProto(from, *to.mutable_pipeline_step());
}

void Put(const ReturnBlocks& from, proto::ToWorker& to) {
  const auto& [pipeline, number, blocks] = from;
  proto::ReturnBlocks& out = *to.mutable_return_blocks();
  out.set_pipeline(pipeline.value());
  out.set_number(number);
  out.mutable_blocks()->Add(blocks.begin(), blocks.end());
}

void Put(const ExportKv& from, proto::ToWorker& to) {
  const auto& [handle, blocks, tokens, lease] = from;
  proto::ExportKv& out = *to.mutable_export_kv();
  ToProto(handle, *out.mutable_handle());
  out.mutable_blocks()->Add(blocks.begin(), blocks.end());
  out.set_tokens(static_cast<uint32_t>(tokens));
  out.set_lease_ns(static_cast<uint64_t>(lease.ns));
}

void Put(const ReleaseKv& from, proto::ToWorker& to) {
  const auto& [handle] = from;
  ToProto(handle, *to.mutable_release_kv()->mutable_handle());
}

void Put(const PullKv& from, proto::ToWorker& to) {
  const auto& [transfer, pipeline, blocks, first_token, end_token, sources, background, layers,
               activations] = from;
  proto::PullKv& out = *to.mutable_pull_kv();
  out.set_transfer(transfer.value());
  out.set_pipeline(pipeline.value());
  out.mutable_blocks()->Add(blocks.begin(), blocks.end());
  out.set_first_token(static_cast<uint32_t>(first_token));
  out.set_end_token(static_cast<uint32_t>(end_token));
  for (const auto& [source, handle, of_layers, rank] : sources) {
    proto::KvSource& entry = *out.add_sources();
    ToProto(source, *entry.mutable_from());
    ToProto(handle, *entry.mutable_handle());
    ToProto(of_layers, *entry.mutable_layers());
    ToProto(rank, *entry.mutable_rank());
  }
  out.set_background(background);
  if (layers) ToProto(*layers, *out.mutable_layers());
  out.set_activations(static_cast<uint32_t>(activations));
}

void Put(const ProbeLink& from, proto::ToWorker& to) {
  const auto& [probe, link, worker] = from;
  proto::ProbeLink& out = *to.mutable_probe_link();
  out.set_probe(probe.value());
  out.set_link(static_cast<uint32_t>(link));
  ToProto(worker, *out.mutable_from());
}

void Put(const Leave& from, proto::ToWorker& to) {
  const auto& [reason, on_notice] = from;
  proto::Status printable;  // the same rule, for a text that may quote anything
  ToProto(Internal(reason), printable);
  to.mutable_leave()->set_reason(printable.message());
  to.mutable_leave()->set_on_notice(on_notice);
}

// ---- from the wire

constexpr uint32_t kProtocolUnsaid = 5;  // of a controller that does not say its version

Status Read(const proto::Welcome& from, Welcome& out) {
  out.worker = WorkerId(from.worker());
  out.term = Term(from.term());
  MR_RETURN_IF_ERROR(
      TakeDuration("heartbeat_every", from.heartbeat_every_ns(), out.heartbeat_every));
  if (out.heartbeat_every.ns == 0) return Missing("heartbeat_every");
  if (from.has_store()) {
    MR_RETURN_IF_ERROR(TakeText("store", from.store(), kNameBytesMax, out.store.emplace()));
  }
  return TakeProtocol(from.has_protocol_version() ? from.protocol_version() : kProtocolUnsaid,
                      from.has_oldest_protocol_version()
                          ? std::optional(from.oldest_protocol_version())
                          : std::nullopt,
                      out.protocol);
}

Status Read(const proto::Refused& from, Refused& out) {
  out.retry = from.retry();
  MR_RETURN_WITHIN("reason", FromProto(from.reason(), out.reason));
  return OkStatus();
}

Status Read(const proto::LoadShard& from, LoadShard& out) {
  out.shard = ShardId(from.shard());
  out.group = from.group();
  MR_RETURN_WITHIN("layers", FromProto(from.layers(), out.layers));
  MR_RETURN_WITHIN("rank", FromProto(from.rank(), out.rank));
  MR_RETURN_IF_ERROR(
      TakeAddresses("ranks", from.ranks(), static_cast<size_t>(out.rank.size), out.ranks));
  if (out.rank.size > 1 && out.ranks.size() != static_cast<size_t>(out.rank.size)) {
    return InvalidArgument(
        fmt::format("ranks has {} entries for {} ranks", out.ranks.size(), out.rank.size));
  }
  MR_RETURN_IF_ERROR(TakeAddresses("sources", from.sources(), kPeersPerMessageMax, out.sources));
  MR_RETURN_IF_ERROR(TakeText("model_fingerprint", from.model_fingerprint(), kNameBytesMax,
                              out.model_fingerprint));
  MR_RETURN_IF_ERROR(Take("max_batched_tokens", from.max_batched_tokens(), out.max_batched_tokens,
                          0, kTokensPerStepMax));
  return Take("max_model_len", from.max_model_len(), out.max_model_len);
}

Status Read(const proto::TokenTable& from, TokenTable& out) {
  MR_RETURN_IF_ERROR(TakeText("digest", from.digest(), kNameBytesMax, out.digest));
  MR_RETURN_IF_ERROR(CheckCount("table", from.table().size(), kTokenTableBytesMax));
  out.bytes = std::make_shared<const std::string>(from.table());
  return OkStatus();
}

Status Read(const proto::UnloadShard& from, UnloadShard& out) {
  out.shard = ShardId(from.shard());
  return OkStatus();
}

Status ReadHop(const proto::PipelineHop& from, PipelineHop& out) {
  MR_RETURN_WITHIN("layers", FromProto(from.layers(), out.layers));
  const int size = from.ranks_size();
  if (size != 1 && size != 2 && size != 4 && size != 8) {
    return InvalidArgument(fmt::format("ranks must be 1, 2, 4 or 8, got {}", size));
  }
  MR_RETURN_IF_ERROR(TakeAddresses("ranks", from.ranks(), 8, out.ranks));
  if (from.shards_size() != size) {
    return InvalidArgument(fmt::format("{} shards for {} ranks", from.shards_size(), size));
  }
  for (const uint64_t shard : from.shards()) out.shards.emplace_back(shard);
  return OkStatus();
}

Status Read(const proto::OpenPipeline& from, OpenPipeline& out) {
  out.pipeline = PipelineId(from.pipeline());
  MR_RETURN_IF_ERROR(
      CheckCount("hops", static_cast<size_t>(from.hops_size()), kHopsPerPipelineMax));
  if (from.hops_size() == 0) return Missing("hops");
  for (int i = 0; i < from.hops_size(); ++i) {
    PipelineHop& hop = out.hops.emplace_back();
    MR_RETURN_WITHIN(Element("hops", i), ReadHop(from.hops(i), hop));
    if (i > 0 && out.hops[static_cast<size_t>(i) - 1].layers.end != hop.layers.begin) {
      return InvalidArgument(Element("hops", i) + ": layers must follow those of the previous hop");
    }
  }
  MR_RETURN_IF_ERROR(Take("hop", from.hop(), out.hop, 0, out.hops.size() - 1));
  const auto& ranks = out.hops[static_cast<size_t>(out.hop)].ranks;
  MR_RETURN_IF_ERROR(Take("rank", from.rank(), out.rank, 0, ranks.size() - 1));
  MR_RETURN_IF_ERROR(Take("block_size", from.block_size(), out.block_size, 1, kBlockSizeMax));
  MR_RETURN_IF_ERROR(Take("num_blocks", from.num_blocks(), out.num_blocks));
  MR_RETURN_IF_ERROR(Take("num_host_blocks", from.num_host_blocks(), out.num_host_blocks));
  MR_RETURN_IF_ERROR(Take("max_batched_tokens", from.max_batched_tokens(), out.max_batched_tokens,
                          0, kTokensPerStepMax));
  MR_RETURN_IF_ERROR(
      TakeIndices("eos_token_ids", from.eos_token_ids(), kEosTokensMax, out.eos_token_ids));
  const LayerRange layers = out.hops[static_cast<size_t>(out.hop)].layers;
  MR_RETURN_IF_ERROR(TakeIndices("cache_activations_at", from.cache_activations_at(),
                                 static_cast<size_t>(layers.size()), out.cache_activations_at));
  int before = layers.begin;
  for (const int layer : out.cache_activations_at) {
    if (layer <= before || layer > layers.end) {
      return InvalidArgument(
          fmt::format("cache_activations_at: {} is not in ({}, {}], or not ascending", layer,
                      layers.begin, layers.end));
    }
    before = layer;
  }
  out.shares_memory = from.shares_memory();
  return OkStatus();
}

Status Read(const proto::ClosePipeline& from, ClosePipeline& out) {
  out.pipeline = PipelineId(from.pipeline());
  return OkStatus();
}

Status Read(const proto::PipelineStep& from, PipelineStep& out) { return FromProto(from, out); }

Status Read(const proto::ReturnBlocks& from, ReturnBlocks& out) {
  out.pipeline = PipelineId(from.pipeline());
  out.number = from.number();
  return TakeIndices("blocks", from.blocks(), kBlocksPerMessageMax, out.blocks);
}

Status Read(const proto::ExportKv& from, ExportKv& out) {
  MR_RETURN_WITHIN("handle", FromProto(from.handle(), out.handle));
  MR_RETURN_IF_ERROR(TakeIndices("blocks", from.blocks(), kBlocksPerMessageMax, out.blocks));
  MR_RETURN_IF_ERROR(Take("tokens", from.tokens(), out.tokens));
  return TakeDuration("lease", from.lease_ns(), out.lease);
}

Status Read(const proto::ReleaseKv& from, ReleaseKv& out) {
  MR_RETURN_WITHIN("handle", FromProto(from.handle(), out.handle));
  return OkStatus();
}

Status Read(const proto::KvSource& from, KvSource& out) {
  MR_RETURN_WITHIN("from", FromProto(from.from(), out.from));
  MR_RETURN_WITHIN("handle", FromProto(from.handle(), out.handle));
  MR_RETURN_WITHIN("layers", FromProto(from.layers(), out.layers));
  MR_RETURN_WITHIN("rank", FromProto(from.rank(), out.rank));
  return OkStatus();
}

Status Read(const proto::PullKv& from, PullKv& out) {
  out.transfer = TransferId(from.transfer());
  out.pipeline = PipelineId(from.pipeline());
  MR_RETURN_IF_ERROR(TakeIndices("blocks", from.blocks(), kBlocksPerMessageMax, out.blocks));
  MR_RETURN_IF_ERROR(Take("end_token", from.end_token(), out.end_token));
  MR_RETURN_IF_ERROR(Take("first_token", from.first_token(), out.first_token, 0, from.end_token()));
  MR_RETURN_IF_ERROR(
      CheckCount("sources", static_cast<size_t>(from.sources_size()), kPeersPerMessageMax));
  out.sources.resize(static_cast<size_t>(from.sources_size()));
  for (int i = 0; i < from.sources_size(); ++i) {
    MR_RETURN_WITHIN(Element("sources", i),
                     Read(from.sources(i), out.sources[static_cast<size_t>(i)]));
  }
  out.background = from.background();
  int activations = 0;
  MR_RETURN_IF_ERROR(Take("activations", from.activations(), activations, 0,
                          static_cast<int>(PulledActivations::kAny)));
  out.activations = static_cast<PulledActivations>(activations);
  if (!from.has_layers()) return OkStatus();
  MR_RETURN_WITHIN("layers", FromProto(from.layers(), out.layers.emplace()));
  return OkStatus();
}

Status Read(const proto::ProbeLink& from, ProbeLink& out) {
  out.probe = ProbeId(from.probe());
  int link = 0;
  MR_RETURN_IF_ERROR(
      Take("link", from.link(), link, 0, static_cast<uint64_t>(ProbedLink::kToController)));
  out.link = static_cast<ProbedLink>(link);
  if (!from.has_from()) return Missing("from");
  MR_RETURN_WITHIN("from", FromProto(from.from(), out.from));
  return OkStatus();
}

Status Read(const proto::Leave& from, Leave& out) {
  out.on_notice = from.on_notice();
  return TakeText("reason", from.reason(), kStatusBytesMax, out.reason);
}

template <typename Core, typename Proto>
Status ReadAs(std::string_view name, const Proto& from, ToWorker& out) {
  MR_RETURN_WITHIN(name, Read(from, out.emplace<Core>()));
  return OkStatus();
}

}  // namespace

void ToProto(const ToWorker& from, proto::ToWorker& to) {
  std::visit([&](const auto& message) { Put(message, to); }, from);
}

Status FromProto(const proto::ToWorker& from, ToWorker& out) {
  using P = proto::ToWorker;
  switch (from.message_case()) {
    case P::kWelcome: return ReadAs<Welcome>("welcome", from.welcome(), out);
    case P::kRefused: return ReadAs<Refused>("refused", from.refused(), out);
    case P::kLoadShard: return ReadAs<LoadShard>("load_shard", from.load_shard(), out);
    case P::kUnloadShard: return ReadAs<UnloadShard>("unload_shard", from.unload_shard(), out);
    case P::kOpenPipeline: return ReadAs<OpenPipeline>("open_pipeline", from.open_pipeline(), out);
    case P::kClosePipeline:
      return ReadAs<ClosePipeline>("close_pipeline", from.close_pipeline(), out);
    case P::kReturnBlocks: return ReadAs<ReturnBlocks>("return_blocks", from.return_blocks(), out);
    case P::kPipelineStep: return ReadAs<PipelineStep>("pipeline_step", from.pipeline_step(), out);
    case P::kExportKv: return ReadAs<ExportKv>("export_kv", from.export_kv(), out);
    case P::kReleaseKv: return ReadAs<ReleaseKv>("release_kv", from.release_kv(), out);
    case P::kPullKv: return ReadAs<PullKv>("pull_kv", from.pull_kv(), out);
    case P::kProbeLink: return ReadAs<ProbeLink>("probe_link", from.probe_link(), out);
    case P::kTokenTable: return ReadAs<TokenTable>("token_table", from.token_table(), out);
    case P::kLeave: return ReadAs<Leave>("leave", from.leave(), out);
    case P::MESSAGE_NOT_SET: break;
  }
  return Missing("message");
}

}  // namespace millrace::wire
