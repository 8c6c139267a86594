// ClusterView: the answer of GET /cluster/status as a struct, and as text for people. A field that
// another version of the server omits or sends with another type is empty, not an error. Values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/cluster/machines_view.h"
#include "cluster/control/controller_status.h"

namespace millrace::apps {

struct NoticeView {
  std::string source, kind;
  bool leaves = false;
  std::optional<double> in_s;  // unset: no deadline is known
};
struct WorkerView {
  std::string name, address, device, state, note;
  std::optional<NoticeView> notice;
  std::vector<LayerRange> layers;
  int rank = 0, ranks = 1;
  int64_t weight_bytes = 0, kv_bytes = 0, batches = 0;
  double silent_s = 0;
  int64_t memory_bytes = 0;
  MachineFacts machine;
  std::string numeric_class, fingerprint;
  std::optional<double> prefill_tokens_per_s, decode_tokens_per_s;
};
struct PipelineView {
  int64_t id = 0;
  std::vector<std::string> workers;  // by hop
  std::vector<LayerRange> layers;    // likewise
  std::string role, state, numeric_class, fingerprint;
  int64_t requests = 0, blocks_total = 0, blocks_used = 0;
};
struct StageView {
  std::vector<std::string> workers;  // by rank; empty: none is assigned
  LayerRange layers;
  std::string role;
  bool up = false;
  int64_t kv_blocks = 0, kv_blocks_used = 0, running = 0, waiting = 0;
};
struct EdgeView {  // counts since the plan is in force
  std::string from, to, phase;
  double planned_tokens_per_s = 0;
  int64_t tokens = 0, requests = 0;
  // Of hand-overs. The speed is not known before the first one.
  std::optional<int64_t> bytes;
  std::optional<double> seconds;
  std::optional<std::optional<double>> bytes_per_s;
};
struct ClusterView {
  std::string model;
  int64_t term = 0, epoch = 0;
  std::optional<std::string> missing;   // why no request can be served
  std::optional<std::string> degraded;  // which stage is not up although requests can be served
  bool changing = false;                // to another plan
  std::optional<cluster::GivenUpPlan> given_up;  // the last change of plan, if it was given up
  std::vector<WorkerView> workers;
  std::vector<cluster::Membership::Still> still;
  std::vector<PipelineView> pipelines;
  std::vector<StageView> stages;
  std::vector<EdgeView> edges;
  std::vector<LinkView> links;  // of the controller
  int64_t requests = 0, waiting = 0, moving = 0;
  cluster::WaitingStatus waiting_for;
  bool cross_class_replay = false;
  ServerSizes server;
  std::map<std::string, int64_t> counters;
};

// A field that is missing from one of these lists does not compile.
void ForEachJsonField(NoticeView& view, const auto& visit) {
  auto& [source, kind, leaves, in_s] = view;
  visit({"source"}, source);
  visit({"kind"}, kind);
  visit({"leaves"}, leaves);
  visit({"in_s"}, in_s);
}
void ForEachJsonField(WorkerView& view, const auto& visit) {
  auto& [name, address, device, state, note, notice, layers, rank, ranks, weight_bytes, kv_bytes,
         batches, silent_s, memory_bytes, machine, numeric_class, fingerprint, prefill, decode] =
      view;
  visit({"name"}, name);
  visit({"address"}, address);
  visit({"device"}, device);
  visit({"state"}, state);
  visit({"note", kSentenceBytesMax}, note);
  visit({"notice"}, notice);
  visit({"layers"}, layers);
  visit({.name = "rank", .most = kLayerMax}, rank);
  visit({.name = "ranks", .least = 1, .most = kLayerMax}, ranks);
  visit({"weight_bytes"}, weight_bytes);
  visit({"kv_bytes"}, kv_bytes);
  visit({"batches"}, batches);
  visit({"silent_s"}, silent_s);
  visit({"memory_bytes"}, memory_bytes);
  ForEachJsonField(machine, visit);
  visit({"numeric_class", kSentenceBytesMax}, numeric_class);
  visit({"fingerprint"}, fingerprint);
  visit({.name = "prefill_tokens_per_s", .omitted = true}, prefill);
  visit({.name = "decode_tokens_per_s", .omitted = true}, decode);
}
void ForEachJsonField(cluster::Membership::Still& still, const auto& visit) {
  auto& [name, reason] = still;
  visit({"name"}, name);
  visit({"reason", kSentenceBytesMax}, reason);
}
void ForEachJsonField(PipelineView& view, const auto& visit) {
  auto& [id, workers, layers, role, state, numeric_class, fingerprint, requests, blocks_total,
         blocks_used] = view;
  visit({"id"}, id);
  visit({"workers"}, workers);
  visit({"layers"}, layers);
  visit({"role"}, role);
  visit({"state"}, state);
  visit({"numeric_class", kSentenceBytesMax}, numeric_class);
  visit({"fingerprint"}, fingerprint);
  visit({"requests"}, requests);
  visit({"blocks_total"}, blocks_total);
  visit({"blocks_used"}, blocks_used);
}
void ForEachJsonField(StageView& view, const auto& visit) {
  auto& [workers, layers, role, up, kv_blocks, kv_blocks_used, running, waiting] = view;
  visit({"workers"}, workers);
  visit({"layers"}, layers);
  visit({"role"}, role);
  visit({"up"}, up);
  visit({"kv_blocks"}, kv_blocks);
  visit({"kv_blocks_used"}, kv_blocks_used);
  visit({"running"}, running);
  visit({"waiting"}, waiting);
}
void ForEachJsonField(EdgeView& view, const auto& visit) {
  auto& [from, to, phase, planned, tokens, requests, bytes, seconds, bytes_per_s] = view;
  visit({"from"}, from);
  visit({"to"}, to);
  visit({"phase"}, phase);
  visit({"planned_tokens_per_s"}, planned);
  visit({"tokens"}, tokens);
  visit({"requests"}, requests);
  visit({.name = "bytes", .omitted = true}, bytes);
  visit({.name = "seconds", .omitted = true}, seconds);
  visit({.name = "bytes_per_s", .omitted = true}, bytes_per_s);
}
void ForEachJsonField(cluster::GivenUpPlan& plan, const auto& visit) {
  auto& [epoch, reason] = plan;
  visit({"plan"}, epoch);
  visit({"reason", kSentenceBytesMax}, reason);
}
void ForEachJsonField(cluster::WaitingStatus& waiting, const auto& visit) {
  auto& [prefill, decode, transfer] = waiting;
  visit({"prefill"}, prefill);
  visit({"decode"}, decode);
  visit({"transfer"}, transfer);
}
void ForEachJsonField(ClusterView& view, const auto& visit) {
  auto& [model, term, epoch, missing, degraded, changing, given_up, workers, still, pipelines,
         stages, edges, links, requests, waiting, moving, waiting_for, cross_class_replay, server,
         counters] = view;
  visit({"model"}, model);
  visit({"term"}, term);
  visit({"epoch"}, epoch);
  visit({"missing", kSentenceBytesMax}, missing);
  visit({"degraded", kSentenceBytesMax}, degraded);
  visit({"changing"}, changing);
  visit({"given_up"}, given_up);
  visit({"workers"}, workers);
  visit({"still"}, still);
  visit({"pipelines"}, pipelines);
  visit({"stages"}, stages);
  visit({"edges"}, edges);
  visit({"links", kTextBytesMax}, links);
  visit({"requests"}, requests);
  visit({"waiting"}, waiting);
  visit({"moving"}, moving);
  visit({"waiting_for"}, waiting_for);
  visit({"cross_class_replay"}, cross_class_replay);
  visit({"server"}, server);
  visit({"counters"}, counters);
}

// An earlier look at the same cluster. What happened since then is shown as rates.
struct EarlierView {
  ClusterView view;
  double seconds = 0;  // ago
};

ClusterView ReadClusterView(const Json& status);
// The picture of stages and flow (cluster_picture.h), tables of workers and machines, counters.
// Text from the server is made printable.
std::string FormatClusterView(const ClusterView& view);
// For a screen that is refreshed: the picture, workers that do not serve, counters. `earlier` may
// be unset.
std::string FormatClusterNow(const ClusterView& view, const std::optional<EarlierView>& earlier);
// "0-5, 8"; "-" for none. The end is included.
std::string LayersText(const std::vector<LayerRange>& layers);

}  // namespace millrace::apps
