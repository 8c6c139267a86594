#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/log.h"
#include "plan/io/cluster_yaml.h"
#include "plan/io/helix_files.h"
#include "plan/io/text_fields.h"

namespace millrace::plan {
namespace {

constexpr size_t kEntriesMax = 4'000'000;
constexpr double kBytesPerSMin = 125, kBytesPerSMax = 12.5e12;  // as in cluster.yaml
constexpr double kLatencyMaxS = 10;
constexpr double kNicBytesPerS = 10e9;  // machine_profiles.ini: the same for every type

struct GpuType {
  std::string_view helix, device;
  int count;
  int64_t memory_bytes;  // of all devices together
};
constexpr GpuType kGpuTypes[] = {
    {"A100", "a100-40gb", 1, 40'000'000'000}, {"V100", "v100-16gb", 1, 16'000'000'000},
    {"L4", "l4", 1, 24'000'000'000},          {"L4x2", "l4", 2, 48'000'000'000},
    {"T4", "t4", 1, 16'000'000'000},          {"T4x2", "t4", 2, 32'000'000'000},
    {"T4x4", "t4", 4, 64'000'000'000},
};

struct Entry {
  Field section, key, value;
};

// Every "key=value" with its section's title. A key before the first section is an error.
Result<std::vector<Entry>> ReadIni(std::string_view text, std::string_view name) {
  if (text.size() > kHelixBytesMax) {
    return InvalidArgument(
        fmt::format("{}: is larger than {} bytes", Printable(name), kHelixBytesMax));
  }
  std::vector<Entry> entries;
  LineReader lines(text);
  Field section;
  while (lines.Next()) {
    const Field line = lines.content();
    if (line.text.front() == '[') {
      if (line.text.back() != ']' || line.text.size() < 3) {
        return ErrorAt(name, line, "a section must be written [Title]");
      }
      section = lines.Piece(line.text.substr(1, line.text.size() - 2));
      continue;
    }
    const size_t equals = line.text.find('=');
    if (equals == std::string_view::npos) return ErrorAt(name, line, "must be KEY=VALUE");
    if (section.text.empty()) return ErrorAt(name, line, "comes before the first [Section]");
    if (entries.size() == kEntriesMax) {
      return ErrorAt(name, line, fmt::format("more than {} entries", kEntriesMax));
    }
    const std::string_view key = Trimmed(line.text.substr(0, equals));
    const std::string_view value = Trimmed(line.text.substr(equals + 1));
    if (key.empty() || value.empty()) return ErrorAt(name, line, "must be KEY=VALUE");
    entries.push_back({section, lines.Piece(key), lines.Piece(value)});
  }
  return entries;
}

// Converts "1283 * mbps" to bytes per second or seconds, by the units of `allowed`.
using HelixUnits = std::array<std::pair<std::string_view, double>, 2>;
constexpr HelixUnits kSpeedUnits = {{{"mbps", 1e6}, {"gbps", 1e9}}};
constexpr HelixUnits kTimeUnits = {{{"MilliSec", 1e-3}, {"Sec", 1}}};

Result<double> Expression(const Field& field, const HelixUnits& units, double min, double max,
                          std::string_view name) {
  const size_t star = field.text.find('*');
  if (star != std::string_view::npos) {
    const auto number = NumberIn(Trimmed(field.text.substr(0, star)));
    const std::string_view unit = Trimmed(field.text.substr(star + 1));
    for (const auto& [known, size] : units) {
      if (!number || unit != known) continue;
      const double value = *number * size;
      if (value >= min && value <= max) return value;
      return ErrorAt(name, field,
                     fmt::format("must be in [{:g}, {:g}] {}, got '{}'", min / size, max / size,
                                 unit, Printable(field.text, 40)));
    }
  }
  return ErrorAt(name, field,
                 fmt::format("must be a number with its unit, such as '1 * {}' or '1 * {}', got "
                             "'{}'",
                             units[0].first, units[1].first, Printable(field.text, 40)));
}

class ClusterImport {
 public:
  explicit ClusterImport(std::string_view name) : name_(name) {}

  Result<ClusterSpec> Read(std::string_view text) {
    MR_ASSIGN_OR_RETURN(const auto entries, ReadIni(text, name_));
    for (const Entry& entry : entries) {
      if (entry.section.text.starts_with("ComputeNode-") && entry.key.text == "type") {
        MR_RETURN_IF_ERROR(AddNode(entry));
      }
    }
    if (out_.nodes.empty()) {
      return ErrorAt(name_, 1, 1, "there is no [ComputeNode-0] with a type in this file");
    }
    for (const Entry& entry : entries) {
      if (entry.section.text.starts_with("Link-")) MR_RETURN_IF_ERROR(AddToLink(entry));
    }
    MR_RETURN_IF_ERROR(BuildLinks());
    out_.name = ClusterName();
    return std::move(out_);
  }

 private:
  struct HalfLink {
    Field section;
    std::optional<double> bytes_per_s, latency_s;
  };

  // The file's name without folder and extension.
  std::string ClusterName() const {
    std::string_view stem = name_.substr(name_.find_last_of('/') + 1);
    if (stem.ends_with(".ini")) stem.remove_suffix(4);
    return std::string(stem);
  }

  Status AddNode(const Entry& entry) {
    const auto index = IntegerIn(entry.section.text.substr(sizeof("ComputeNode-") - 1));
    const auto next = static_cast<int64_t>(out_.nodes.size());
    if (next == ClusterSpec::kNodesMax) {
      return ErrorAt(name_, entry.section,
                     fmt::format("more than {} nodes", ClusterSpec::kNodesMax));
    }
    if (index != next) {
      return ErrorAt(name_, entry.section,
                     fmt::format("nodes must be in order: [ComputeNode-{}] comes next", next));
    }
    for (const GpuType& type : kGpuTypes) {
      if (type.helix != entry.value.text) continue;
      NodeSpec node;
      node.name = fmt::format("node-{}", next);
      node.device = type.device;
      node.device_count = type.count;
      node.memory_bytes = type.memory_bytes;
      node.nic_bytes_per_s = kNicBytesPerS;
      out_.nodes.push_back(std::move(node));
      return OkStatus();
    }
    return ErrorAt(name_, entry.value,
                   fmt::format("unknown GPU type '{}'; known: A100, V100, L4, L4x2, T4, T4x2, T4x4",
                               Printable(entry.value.text, 40)));
  }

  Result<int> End(std::string_view text, std::string_view coordinator, const Entry& entry) const {
    if (text == coordinator) return out_.coordinator();
    const auto index = IntegerIn(text);
    if (index && *index >= 0 && *index < out_.coordinator()) return static_cast<int>(*index);
    return ErrorAt(name_, entry.section,
                   fmt::format("'{}' is not a node; nodes are 0 to {}, source and sink",
                               Printable(text, 40), out_.coordinator() - 1));
  }

  Status AddToLink(const Entry& entry) {
    const std::string_view ends = entry.section.text.substr(sizeof("Link-") - 1);
    const size_t dash = ends.find('-');
    if (dash == std::string_view::npos) {
      return ErrorAt(name_, entry.section, "a link must be written [Link-FROM-TO]");
    }
    MR_ASSIGN_OR_RETURN(const int from, End(ends.substr(0, dash), "source", entry));
    MR_ASSIGN_OR_RETURN(const int to, End(ends.substr(dash + 1), "sink", entry));
    if (from == to) return ErrorAt(name_, entry.section, "a node has no link to itself");
    HalfLink& link = links_[{from, to}];
    if (link.section.line == 0) link.section = entry.section;
    if (link.section.line != entry.section.line) {
      return ErrorAt(name_, entry.section,
                     fmt::format("this link is already given on line {}", link.section.line));
    }
    if (entry.key.text == "bandwidth") {
      MR_ASSIGN_OR_RETURN(link.bytes_per_s, Expression(entry.value, kSpeedUnits, kBytesPerSMin,
                                                       kBytesPerSMax, name_));
    } else if (entry.key.text == "latency") {
      MR_ASSIGN_OR_RETURN(link.latency_s,
                          Expression(entry.value, kTimeUnits, 0, kLatencyMaxS, name_));
    }
    return OkStatus();
  }

  Status BuildLinks() {
    const int coordinator = out_.coordinator();
    for (const auto& [ends, link] : links_) {
      if (!link.bytes_per_s || !link.latency_s) {
        return ErrorAt(name_, link.section, "a link needs a bandwidth and a latency");
      }
      const auto [from, to] = ends;
      LinkSpec spec{from, to, *link.bytes_per_s, Duration::Seconds(*link.latency_s), {}};
      out_.links.push_back(spec);
      // Source and sink are the two ends of the coordinator. A link between nodes applies in both
      // directions.
      if (from == coordinator || to == coordinator || links_.contains({to, from})) continue;
      std::swap(spec.from, spec.to);
      out_.links.push_back(spec);
    }
    std::sort(out_.links.begin(), out_.links.end(), [](const LinkSpec& a, const LinkSpec& b) {
      return std::pair(a.from, a.to) < std::pair(b.from, b.to);
    });
    const auto cut_off = FirstCutOffNode(out_);
    if (!cut_off) return OkStatus();
    return ErrorAt(
        name_, 1, 1,
        fmt::format("no links lead from source to ComputeNode-{} and on to sink", *cut_off));
  }

  const std::string_view name_;
  ClusterSpec out_;
  std::map<std::pair<int, int>, HalfLink> links_;
};

// Converts "[37, 38, 39]" to [37, 40) and "[]" to [0, 0).
Result<LayerRange> Layers(const Field& field, std::string_view name) {
  const Status error = ErrorAt(
      name, field,
      fmt::format("must be a list of consecutive layers below {}, such as [4, 5, 6], got '{}'",
                  kHelixLayersMax, Printable(field.text, 40)));
  if (field.text.size() < 2 || field.text.front() != '[' || field.text.back() != ']') return error;
  std::string_view rest = Trimmed(field.text.substr(1, field.text.size() - 2));
  LayerRange range;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const auto layer = IntegerIn(Trimmed(rest.substr(0, comma)));
    if (!layer || *layer < 0 || *layer >= kHelixLayersMax) return error;
    if (range.size() == 0) range = {static_cast<int>(*layer), static_cast<int>(*layer)};
    if (*layer != range.end || comma + 1 == rest.size()) return error;
    ++range.end;
    rest = comma == rest.size() ? "" : Trimmed(rest.substr(comma + 1));
  }
  return range;
}

}  // namespace

Result<ClusterSpec> ParseHelixCluster(std::string_view text, std::string_view name) {
  return ClusterImport(name).Read(text);
}

Result<std::vector<LayerRange>> ParseHelixPlacement(std::string_view text, std::string_view name) {
  MR_ASSIGN_OR_RETURN(const auto entries, ReadIni(text, name));
  std::optional<int64_t> offset;
  std::map<int64_t, LayerRange> held;
  for (const Entry& entry : entries) {
    if (entry.section.text == "Settings" && entry.key.text == "offset") {
      offset = IntegerIn(entry.value.text);
      if (offset && *offset >= 0 && *offset <= 1000) continue;
      return ErrorAt(name, entry.value, "offset must be an integer in [0, 1000]");
    }
    if (entry.section.text != "Solution") continue;
    constexpr std::string_view kPrefix = "compute_node_";
    const auto id = entry.key.text.starts_with(kPrefix)
                        ? IntegerIn(entry.key.text.substr(kPrefix.size()))
                        : std::nullopt;
    if (!id || !offset || *id < *offset || *id - *offset >= ClusterSpec::kNodesMax) {
      return ErrorAt(name, entry.key,
                     fmt::format("must be compute_node_N with N at least the offset of [Settings], "
                                 "got '{}'",
                                 Printable(entry.key.text, 40)));
    }
    MR_ASSIGN_OR_RETURN(const LayerRange layers, Layers(entry.value, name));
    if (!held.emplace(*id - *offset, layers).second) {
      return ErrorAt(name, entry.key,
                     fmt::format("{} is given twice", Printable(entry.key.text, 40)));
    }
  }
  if (held.empty()) return ErrorAt(name, 1, 1, "there is no compute_node_N in a [Solution]");
  std::vector<LayerRange> placement(static_cast<size_t>(held.rbegin()->first) + 1);
  for (const auto& [node, layers] : held) placement[static_cast<size_t>(node)] = layers;
  return placement;
}

}  // namespace millrace::plan
