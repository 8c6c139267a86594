#include "apps/cluster/machines_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/statistics.h"
#include "cluster/control/parts/link_probes.h"
#include "plan/io/quantity.h"

namespace millrace::apps {
namespace {

constexpr size_t kNamedMax = 5;  // workers that lack something
// Where no link was measured: two machines of one room.
constexpr double kAssumedBytesPerS = 125e6, kAssumedLatency_s = 0.5e-3;

// What a cluster file may say.
constexpr int64_t kMemoryBytesMin = 1'000'000, kMemoryBytesMax = 16'000'000'000'000;

constexpr double kMbit = 1e6 / 8, kMicrosecond = 1e-6;

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

// Three digits, because the measurement has no more: the number that a file with them says.
double Rounded(double value) {
  if (value <= 0) return 0;
  const double digits = 2 - std::floor(std::log10(value));
  const double scale = std::pow(10, std::abs(digits));  // exact, unlike a negative power
  return digits < 0 ? std::round(value / scale) * scale : std::round(value * scale) / scale;
}

double MbitPerS(const Line& line) { return Rounded(line.bytes_per_s * 8 / 1e6); }
double LatencyUs(const Line& line) { return Rounded(line.latency_s * 1e6); }

std::string Text(const Line& line) {
  return fmt::format("bandwidth: {:g} Mbit/s, latency: {:g} us", MbitPerS(line), LatencyUs(line));
}

// One YAML value on one line; JSON's double quotes are YAML's.
std::string Quoted(const std::string& text) { return DumpJson(text); }

// YAML's single quotes keep JSON readable.
std::string SingleQuoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

bool HasProfile(const MachineView& machine) { return !machine.profile.value_or("").empty(); }

NodeSpec NodeOf(const MachineView& machine) {
  const MachineFacts& facts = machine.machine;
  return {.name = machine.name,
          .region = facts.zone,
          .device = machine.device.empty() ? "unknown" : machine.device,
          .memory_bytes = std::clamp(machine.memory_bytes, kMemoryBytesMin, kMemoryBytesMax),
          .price_usd_per_hour = facts.price_usd_per_hour.value_or(0),
          .spot = facts.spot,
          .numeric_class = machine.numeric_class,
          .profile = machine.profile.value_or("")};
}

std::string NodeText(const NodeSpec& node, const MachineFacts& facts) {
  std::string out = fmt::format("  - name: {}\n", Quoted(node.name));
  if (!node.region.empty()) out += fmt::format("    region: {}\n", Quoted(node.region));
  out += fmt::format("    device: {}\n", Quoted(node.device));
  if (facts.cores) out += fmt::format("    # {} cores\n", *facts.cores);
  out += fmt::format("    memory: {} B\n", node.memory_bytes);
  if (facts.price_usd_per_hour) {
    out += fmt::format("    price: {} USD/h\n", *facts.price_usd_per_hour);
  } else {
    out += "    # its price is not known\n";
  }
  if (node.spot) out += "    spot: true\n";
  if (!node.numeric_class.empty()) {
    out += fmt::format("    numeric_class: {}\n", Quoted(node.numeric_class));
  }
  if (!node.profile.empty()) {
    out += fmt::format("    profile: {}\n", SingleQuoted(node.profile));
  } else {
    out +=
        "    # no profile: the planner takes that of a node with this device, or of the slowest\n";
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
    zones[machine.name] = machine.machine.zone;
    if (machine.machine.zone != view.machines.front().machine.zone) sorted.zones_differ = true;
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
std::string ServerText(ServerSizes server) {
  std::string out;
  ForEachJsonField(server, [&out](const JsonField& field, const auto& value) {
    if (value) out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", field.name, *value);
  });
  return out.empty() ? "" : fmt::format("server: {{{}}}\n", out);
}

}  // namespace

MachinesView ReadMachinesView(const Json& answer) {
  auto view = ReadJson<MachinesView>(answer);
  KeepMeasured(view.links);
  std::optional<int>& block_size = view.server.block_size;
  if (block_size.value_or(0) % ServerSizes::kBlockSizeStep != 0) block_size.reset();
  return view;
}

void KeepMeasured(std::vector<LinkView>& links) {
  std::erase_if(links,
                [](const LinkView& link) { return link.bytes_per_s <= 0 || link.latency_s <= 0; });
}

std::string Lacking(const MachinesView& view) {
  if (view.machines.empty()) return "no worker has joined";
  std::vector<std::string> lacks, unmeasured;
  for (const MachineView& machine : view.machines) {
    if (!HasProfile(machine)) unmeasured.push_back(machine.name);
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

Result<ClusterSpec> ClusterOf(const MachinesView& view) {
  if (view.machines.empty()) {
    return FailedPrecondition("no worker has joined, so there is no cluster to describe");
  }
  const bool named = !view.model.value_or("").empty();
  ClusterSpec out{.name = named ? *view.model : "cluster", .server = view.server};
  std::map<std::string_view, int> ends;
  for (const MachineView& machine : view.machines) {
    ends[machine.name] = static_cast<int>(out.nodes.size());
    out.nodes.push_back(NodeOf(machine));
  }
  const int controller = ends[kControllerEnd] = out.coordinator();
  std::map<std::pair<int, int>, Line> measured;
  for (const LinkView& link : view.links) {
    if (!ends.contains(link.from) || !ends.contains(link.to)) continue;
    measured[{ends[link.from], ends[link.to]}] = {link.bytes_per_s, link.latency_s};
  }
  const SortedLinks links = SortLinks(view);
  const Line within = FallbackOf(links.within, links.all).line;
  const Line between = FallbackOf(links.between, links.all).line;
  const Line controllers = FallbackOf(links.controllers, links.all).line;
  const auto line_of = [&](int from, int to) {
    if (const auto found = measured.find({from, to}); found != measured.end()) return found->second;
    if (from == controller || to == controller) return controllers;
    const auto zone = [&](int end) { return out.nodes[static_cast<size_t>(end)].region; };
    return zone(from) == zone(to) ? within : between;
  };
  for (int from = 0; from <= controller; ++from) {
    for (int to = 0; to <= controller; ++to) {
      if (from == to) continue;
      const Line line = line_of(from, to);
      const double latency_s = LatencyUs(line) * kMicrosecond;
      out.links.push_back({.from = from,
                           .to = to,
                           .bytes_per_s = MbitPerS(line) * kMbit,
                           .latency = Duration::Nanos(std::llround(latency_s * 1e9))});
    }
  }
  return out;
}

Result<std::string> FormatClusterFile(const MachinesView& view) {
  MR_ASSIGN_OR_RETURN(const ClusterSpec cluster, ClusterOf(view));
  std::string out = fmt::format(
      "# The {} workers that had joined, as `millrace cluster describe` found them.\nname: {}\n"
      "nodes:\n",
      cluster.nodes.size(), Quoted(cluster.name));
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    out += NodeText(cluster.nodes[i], view.machines[i].machine);
  }
  return out + LinksText(view) + ServerText(view.server);
}

}  // namespace millrace::apps
