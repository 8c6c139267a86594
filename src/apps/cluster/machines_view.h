// MachinesView: the machines of a running cluster: what GET /cluster/machines answers, as the
// planner's cluster, and as a cluster file (docs/formats/cluster.md). Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cluster/json_fields.h"
#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/worker_messages.h"
#include "cost/profile.h"

namespace millrace::apps {

// What the controller is called as an end of a link, in answers and in cluster files.
inline constexpr std::string_view kControllerEnd = "coordinator";
// Of the texts in a cluster file.
inline constexpr size_t kTextBytesMax = 1024;

struct MachineView {
  std::string name, device, host, numeric_class;
  int64_t memory_bytes = 0;
  MachineFacts machine;
  std::optional<std::string> profile;  // one line
};
struct LinkView {        // one direction
  std::string from, to;  // workers, or kControllerEnd
  double latency_s = 0, bytes_per_s = 0, age_s = 0;
};
struct MachinesView {
  std::optional<std::string> model;
  std::vector<MachineView> machines;
  std::vector<LinkView> links;  // those that were measured
  ServerSizes server;
};

// A field that is missing from one of these lists does not compile.
void ForEachJsonField(MachineFacts& view, const auto& visit) {
  auto& [cores, zone, price_usd_per_hour, spot] = view;
  visit({"cores"}, cores);
  visit({"zone"}, zone);
  visit({"price_usd_per_hour"}, price_usd_per_hour);
  visit({"spot"}, spot);
}
void ForEachJsonField(MachineView& view, const auto& visit) {
  auto& [name, device, host, numeric_class, memory_bytes, machine, profile] = view;
  visit({"name"}, name);
  visit({"device"}, device);
  visit({"host"}, host);
  visit({"numeric_class"}, numeric_class);
  visit({"memory_bytes"}, memory_bytes);
  ForEachJsonField(machine, visit);
  visit({"profile", cost::Profile::kBytesMax}, profile);
}
void ForEachJsonField(LinkView& view, const auto& visit) {
  auto& [from, to, latency_s, bytes_per_s, age_s] = view;
  visit({"from"}, from);
  visit({"to"}, to);
  visit({"latency_s"}, latency_s);
  visit({"bytes_per_s"}, bytes_per_s);
  visit({"age_s"}, age_s);
}
// A number that a cluster file cannot have is taken for none.
void ForEachJsonField(ServerSizes& sizes, const auto& visit) {
  using Sizes = ServerSizes;
  auto& [block_size, seqs, batched_tokens, model_len, caching] = sizes;
  visit({.name = "block_size", .least = 1, .most = Sizes::kBlockSizeMax}, block_size);
  visit({.name = "max_num_seqs", .least = 1, .most = Sizes::kNumSeqsMax}, seqs);
  visit({.name = "max_num_batched_tokens", .least = 1, .most = Sizes::kNumBatchedTokensMax},
        batched_tokens);
  visit({.name = "max_model_len", .least = 1, .most = Sizes::kModelLenMax}, model_len);
  visit({"enable_prefix_caching"}, caching);
}
void ForEachJsonField(MachinesView& view, const auto& visit) {
  auto& [model, machines, links, server] = view;
  visit({.name = "model", .bytes_max = kTextBytesMax, .omitted = true}, model);
  visit({"workers", kTextBytesMax}, machines);
  visit({"links", kTextBytesMax}, links);
  visit({"server"}, server);
}

// A field that is missing or has another type is empty.
MachinesView ReadMachinesView(const Json& answer);
// Removes those whose numbers no link has.
void KeepMeasured(std::vector<LinkView>& links);

// What was not measured yet: "no profile of a, b; 2 of 6 links between workers not measured".
// Empty: each machine has a profile, and each link between two of them and between the controller
// and one of them was measured, as far as the controller measures links.
std::string Lacking(const MachinesView& view);

// The nodes are the workers, under their names. Links that were not measured get the median of
// those that were. kFailedPrecondition: no worker has joined.
Result<ClusterSpec> ClusterOf(const MachinesView& view);
// The same cluster as a file, whose comments say what was not measured.
Result<std::string> FormatClusterFile(const MachinesView& view);

}  // namespace millrace::apps
