#include "apps/cluster/machines_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "apps/cluster/json_fields.h"
#include "base/statistics.h"
#include "cluster/control/parts/link_probes.h"
#include "cost/profile.h"
#include "plan/io/quantity.h"

namespace millrace::apps {
namespace {

constexpr size_t kNamedMax = 5;  // workers that lack something
constexpr size_t kTextBytesMax = 1024;
// Where no link was measured: two machines of one room.
constexpr double kAssumedBytesPerS = 125e6, kAssumedLatency_s = 0.5e-3;

// What a cluster file may say.
constexpr int64_t kMemoryBytesMin = 1'000'000, kMemoryBytesMax = 16'000'000'000'000;

struct Line {
  double bytes_per_s = 0, latency_s = 0;
};

Line MedianOf(const std::vector<LinkView>& links) {
  std::vector<double> rates, latencies;
  for (const LinkView& link : links) {
    rates.push_back(link.bytes_per_s);
    latencies.push_back(link.latency_s);
  }
  return {Median(std::move(rates)), Median(std::move(latencies))};
}

// Three digits: the measurement has no more.
double Rounded(double value) {
  if (value <= 0) return 0;
  const double scale = std::pow(10, std::floor(std::log10(value)) - 2);
  return std::round(value / scale) * scale;
}

std::string Text(const Line& line) {
  return fmt::format("bandwidth: {:g} Mbit/s, latency: {:g} us",
                     Rounded(line.bytes_per_s * 8 / 1e6), Rounded(line.latency_s * 1e6));
}

// One YAML value on one line; JSON's double quotes are YAML's.
std::string Quoted(const std::string& text) { return DumpJson(text); }

// YAML's single quotes keep JSON readable.
std::string SingleQuoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

std::string NodeText(const MachineView& machine) {
  std::string out = fmt::format("  - name: {}\n", Quoted(machine.name));
  if (!machine.zone.empty()) out += fmt::format("    region: {}\n", Quoted(machine.zone));
  out +=
      fmt::format("    device: {}\n", Quoted(machine.device.empty() ? "unknown" : machine.device));
  if (machine.cores) out += fmt::format("    # {} cores\n", *machine.cores);
  out += fmt::format("    memory: {} B\n",
                     std::clamp(machine.memory_bytes, kMemoryBytesMin, kMemoryBytesMax));
  if (machine.price_usd_per_hour) {
    out += fmt::format("    price: {} USD/h\n", *machine.price_usd_per_hour);
  } else {
    out += "    # its price is not known\n";
  }
  if (machine.spot) out += "    spot: true\n";
  if (!machine.numeric_class.empty()) {
    out += fmt::format("    numeric_class: {}\n", Quoted(machine.numeric_class));
  }
  if (machine.profile.empty()) {
    out +=
        "    # no profile: the planner takes that of a node with this device, or of the slowest\n";
  } else {
    out += fmt::format("    profile: {}\n", SingleQuoted(machine.profile));
  }
  return out;
}

struct SortedLinks {  // between machines that have joined, and of the controller
  std::vector<LinkView> all, within, between;  // of machines: all, in one zone, in two zones
  std::vector<LinkView> controllers;
  bool zones_differ = false;
};

SortedLinks SortLinks(const MachinesView& view) {
  SortedLinks sorted;
  std::map<std::string, std::string> zones;  // by name
  for (const MachineView& machine : view.machines) {
    zones[machine.name] = machine.zone;
    if (machine.zone != view.machines.front().zone) sorted.zones_differ = true;
  }
  for (const LinkView& link : view.links) {
    const auto from = zones.find(link.from), to = zones.find(link.to);
    if (from != zones.end() && to != zones.end()) {
      sorted.all.push_back(link);
      (from->second == to->second ? sorted.within : sorted.between).push_back(link);
    } else if ((from != zones.end() && link.to == kControllerEnd) ||
               (to != zones.end() && link.from == kControllerEnd)) {
      sorted.controllers.push_back(link);
    }
  }
  return sorted;
}

// What pairs get that were not measured, and why.
struct Fallback {
  Line line;
  std::string_view why;
};

Fallback FallbackOf(const std::vector<LinkView>& of_kind, const std::vector<LinkView>& others) {
  if (!of_kind.empty()) {
    return {MedianOf(of_kind), "for pairs that were not measured: the median of those that were"};
  }
  if (!others.empty()) {
    return {MedianOf(others), "none of these was measured: the median of all measured links"};
  }
  return {{kAssumedBytesPerS, kAssumedLatency_s}, "no link was measured yet: assumed"};
}

std::string PairsText(const std::vector<LinkView>& links) {
  std::string out;
  for (const LinkView& link : links) {
    out += fmt::format(
        "    # measured {:.0f} s ago\n    - {{nodes: [{}, {}], {}, one_way: true}}\n", link.age_s,
        Quoted(link.from), Quoted(link.to), Text({link.bytes_per_s, link.latency_s}));
  }
  return out;
}

std::string LinksText(const MachinesView& view) {
  const SortedLinks links = SortLinks(view);
  const Fallback within = FallbackOf(links.within, links.all);
  std::string out =
      fmt::format("links:\n  # {}\n  within_region: {{{}}}\n", within.why, Text(within.line));
  if (links.zones_differ) {
    const Fallback between = FallbackOf(links.between, links.all);
    out +=
        fmt::format("  # {}\n  between_regions:\n    - {{{}}}\n", between.why, Text(between.line));
  }
  const std::string pairs = PairsText(links.all) + PairsText(links.controllers);
  if (!pairs.empty()) out += "  pairs:\n" + pairs;
  const Fallback controllers = FallbackOf(links.controllers, links.all);
  return out + fmt::format("# {}\ncoordinator: {{{}}}\n", controllers.why, Text(controllers.line));
}

// Nothing for a controller that does not say its sizes.
std::string ServerText(const ServerSizes& server) {
  std::string out;
  const auto add = [&](const char* key, const auto& value) {
    if (value) out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", key, *value);
  };
  add("block_size", server.block_size);
  add("max_num_seqs", server.max_num_seqs);
  add("max_num_batched_tokens", server.max_num_batched_tokens);
  add("max_model_len", server.max_model_len);
  add("enable_prefix_caching", server.enable_prefix_caching);
  return out.empty() ? "" : fmt::format("server: {{{}}}\n", out);
}

// A number outside 1 to `max` is taken for none: the cluster file would be refused.
std::optional<int> SizeField(const Json& object, const char* key, int max) {
  if (!HasNumber(object, key)) return std::nullopt;
  const int64_t value = IntegerField(object, key);
  return value >= 1 && value <= max ? std::optional(static_cast<int>(value)) : std::nullopt;
}

ServerSizes ServerField(const Json& answer) {
  const auto found = answer.find("server");
  if (found == answer.end() || !found->is_object()) return {};
  ServerSizes sizes;
  sizes.block_size = SizeField(*found, "block_size", ServerSizes::kBlockSizeMax);
  if (sizes.block_size.value_or(0) % ServerSizes::kBlockSizeStep != 0) sizes.block_size.reset();
  sizes.max_num_seqs = SizeField(*found, "max_num_seqs", ServerSizes::kNumSeqsMax);
  sizes.max_num_batched_tokens =
      SizeField(*found, "max_num_batched_tokens", ServerSizes::kNumBatchedTokensMax);
  sizes.max_model_len = SizeField(*found, "max_model_len", ServerSizes::kModelLenMax);
  const auto caching = found->find("enable_prefix_caching");
  if (caching != found->end() && caching->is_boolean()) {
    sizes.enable_prefix_caching = caching->get<bool>();
  }
  return sizes;
}

}  // namespace

MachinesView ReadMachinesView(const Json& answer) {
  MachinesView view;
  if (!answer.is_object()) return view;
  view.model = TextField(answer, "model", kTextBytesMax);
  for (const Json& json : ObjectsField(answer, "workers")) {
    MachineView& machine = view.machines.emplace_back();
    machine.name = TextField(json, "name", kTextBytesMax);
    machine.device = TextField(json, "device", kTextBytesMax);
    machine.zone = TextField(json, "zone", kTextBytesMax);
    machine.numeric_class = TextField(json, "numeric_class", kTextBytesMax);
    machine.memory_bytes = std::max<int64_t>(0, IntegerField(json, "memory_bytes"));
    if (HasNumber(json, "cores")) machine.cores = IntegerField(json, "cores");
    if (HasNumber(json, "price_usd_per_hour")) {
      machine.price_usd_per_hour = RealField(json, "price_usd_per_hour");
    }
    machine.spot = FlagField(json, "spot");
    machine.profile = TextField(json, "profile", cost::Profile::kBytesMax);
  }
  view.links = ReadLinks(answer);
  view.server = ServerField(answer);
  return view;
}

std::vector<LinkView> ReadLinks(const Json& answer) {
  std::vector<LinkView> links;
  for (const Json& json : ObjectsField(answer, "links")) {
    LinkView link{TextField(json, "from", kTextBytesMax), TextField(json, "to", kTextBytesMax),
                  RealField(json, "latency_s"), RealField(json, "bytes_per_s"),
                  RealField(json, "age_s")};
    if (link.bytes_per_s > 0 && link.latency_s > 0) links.push_back(std::move(link));
  }
  return links;
}

std::string Lacking(const MachinesView& view) {
  if (view.machines.empty()) return "no worker has joined";
  std::vector<std::string> lacks, unmeasured;
  for (const MachineView& machine : view.machines) {
    if (machine.profile.empty()) unmeasured.push_back(machine.name);
  }
  if (!unmeasured.empty()) {
    const size_t named = std::min(unmeasured.size(), kNamedMax);
    std::string names =
        fmt::format("{}", fmt::join(unmeasured.begin(), unmeasured.begin() + named, ", "));
    if (named < unmeasured.size()) names += fmt::format(" and {} more", unmeasured.size() - named);
    lacks.push_back("no profile of " + names);
  }
  const size_t probed = std::min(view.machines.size(), cluster::LinkProbeOptions::kWorkersMax);
  const SortedLinks links = SortLinks(view);
  const auto add = [&](size_t measured, size_t all, std::string_view which) {
    if (measured >= all) return;
    lacks.push_back(fmt::format("{} of {} links {} not measured", all - measured, all, which));
  };
  add(links.all.size(), probed * (probed - 1), "between workers");
  add(links.controllers.size(), 2 * probed, "of the controller");
  return fmt::format("{}", fmt::join(lacks, "; "));
}

Result<std::string> FormatClusterFile(const MachinesView& view) {
  if (view.machines.empty()) {
    return FailedPrecondition("no worker has joined, so there is no cluster to describe");
  }
  std::string out = fmt::format(
      "# The {} workers that had joined, as `millrace cluster describe` found them.\nname: {}\n"
      "nodes:\n",
      view.machines.size(), Quoted(view.model.empty() ? "cluster" : view.model));
  for (const MachineView& machine : view.machines) out += NodeText(machine);
  return out + LinksText(view) + ServerText(view.server);
}

}  // namespace millrace::apps
