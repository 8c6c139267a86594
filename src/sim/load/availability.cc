#include "sim/load/availability.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <map>

#include "base/json.h"

namespace millrace::sim {
namespace {

constexpr double kSecondsMax = 1e8;

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.back() == '\r' || s.back() == ' ' || s.back() == '\t'))
    s.remove_suffix(1);
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  return s;
}

// Tracks which machines are alive while a trace is read, and writes the events.
class Builder {
 public:
  Status Error(std::string_view what) const {
    return InvalidArgument(fmt::format("availability trace: line {}: {}", line_, what));
  }

  Status NextLine() {
    if (++line_ > kAvailabilityEventsMax) {
      return Error(fmt::format("at most {} lines", int{kAvailabilityEventsMax}));
    }
    return OkStatus();
  }

  Status MoveTo(double at_s) {
    if (!std::isfinite(at_s) || at_s < 0 || at_s > kSecondsMax) {
      return Error(fmt::format("time {:g} s must be in [0, {:g}]", at_s, kSecondsMax));
    }
    if (at_s < trace_.end_s) {
      return Error(
          fmt::format("time {:g} s comes before {:g} s of an earlier line", at_s, trace_.end_s));
    }
    trace_.end_s = at_s;
    return OkStatus();
  }

  Status Add(const std::vector<std::string>& names) {
    AvailabilityEvent event{.at_s = trace_.end_s, .kind = AvailabilityKind::kAdd};
    for (const std::string& name : names) {
      if (alive_.contains(name)) return Error(fmt::format("\"{}\" is already present", name));
      if (alive_.size() >= kAvailabilityAliveMax || trace_.node_count >= kAvailabilityNodesMax) {
        return Error(fmt::format("at most {} machines at once and {} in all",
                                 int{kAvailabilityAliveMax}, int{kAvailabilityNodesMax}));
      }
      alive_[name] = trace_.node_count;
      event.nodes.push_back(trace_.node_count++);
    }
    return Push(std::move(event));
  }

  Status Remove(const std::vector<std::string>& names) {
    AvailabilityEvent event{.at_s = trace_.end_s, .kind = AvailabilityKind::kRemove};
    for (const std::string& name : names) {
      const auto it = alive_.find(name);
      if (it == alive_.end()) return Error(fmt::format("\"{}\" is not present", name));
      event.nodes.push_back(it->second);
      alive_.erase(it);
    }
    return Push(std::move(event));
  }

  void Load(double requests_per_s) {
    if (trace_.events.empty() || trace_.events.back().at_s != trace_.end_s) {
      trace_.events.push_back({.at_s = trace_.end_s, .kind = AvailabilityKind::kLoad});
    }
    trace_.events.back().requests_per_s = requests_per_s;
  }

  // Brings the number of machines to `count`; the oldest leave first.
  Status Count(int count) {
    std::vector<std::string> names;
    if (count > static_cast<int>(by_age_.size())) {
      while (static_cast<int>(by_age_.size()) < count) {
        by_age_.push_back(fmt::format("n{}", next_name_++));
        names.push_back(by_age_.back());
      }
      return Add(names);
    }
    while (static_cast<int>(by_age_.size()) > count) {
      names.push_back(by_age_.front());
      by_age_.pop_front();
    }
    return names.empty() ? OkStatus() : Remove(names);
  }

  Result<AvailabilityTrace> Finish() {
    if (trace_.node_count == 0) return Error("the trace never has a machine");
    return std::move(trace_);
  }

 private:
  Status Push(AvailabilityEvent event) {
    const int alive = static_cast<int>(alive_.size());
    trace_.most_alive = std::max(trace_.most_alive, alive);
    trace_.fewest_alive = trace_.events.empty() ? alive : std::min(trace_.fewest_alive, alive);
    // Lines of the same moment and kind form one event, so that simultaneous changes are planned
    // together.
    if (!trace_.events.empty() && trace_.events.back().at_s == event.at_s &&
        trace_.events.back().kind == event.kind) {
      auto& nodes = trace_.events.back().nodes;
      nodes.insert(nodes.end(), event.nodes.begin(), event.nodes.end());
      if (trace_.events.size() == 1) trace_.fewest_alive = alive;
    } else if (!event.nodes.empty()) {
      trace_.events.push_back(std::move(event));
    }
    return OkStatus();
  }

  AvailabilityTrace trace_;
  std::map<std::string, int> alive_;
  std::deque<std::string> by_age_;
  int next_name_ = 0;
  int line_ = 0;
};

Result<std::vector<std::string>> Names(const Json& info, const Builder& builder) {
  std::vector<std::string> names;
  const auto it = info.find("nodes");
  if (it == info.end() || !it->is_array())
    return builder.Error("\"nodes\" must be a list of names");
  for (const Json& name : *it) {
    if (!name.is_string()) return builder.Error("\"nodes\" must be a list of names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

Status JsonLine(std::string_view line, Builder& builder) {
  const auto parsed = ParseJson(line);
  if (!parsed.ok()) return builder.Error(parsed.status().message());
  const Json& event = *parsed;
  if (!event.is_array() || event.size() != 3 || !event[0].is_number() || !event[1].is_string() ||
      !event[2].is_object()) {
    return builder.Error("must be [ms, \"add\", {\"nodes\": [...]}]");
  }
  MR_RETURN_IF_ERROR(builder.MoveTo(event[0].get<double>() / 1000));
  const std::string kind = event[1].get<std::string>();
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(event[2], builder));
  if (kind == "add") {
    MR_RETURN_IF_ERROR(builder.Add(names));
  } else if (kind == "remove") {
    MR_RETURN_IF_ERROR(builder.Remove(names));
  } else if (kind != "other" && kind != "no-op" && kind != "migration" && kind != "DONE") {
    return builder.Error(fmt::format("\"{}\" is not a kind of event", kind.substr(0, 40)));
  }
  const auto load = event[2].find("required_tpt");
  if (load == event[2].end()) return OkStatus();
  if (!load->is_number() || !(load->get<double>() > 0) || load->get<double>() > 1e9) {
    return builder.Error("\"required_tpt\" must be a number above zero");
  }
  builder.Load(load->get<double>());
  return OkStatus();
}

Result<double> Number(std::string_view field, const Builder& builder) {
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || end != field.data() + field.size()) {
    return builder.Error(fmt::format("\"{}\" is not a number", field.substr(0, 40)));
  }
  return value;
}

Status CsvLine(std::string_view line, double count_unit_s, Builder& builder) {
  std::vector<std::string_view> fields;
  for (size_t start = 0; start <= line.size();) {
    const size_t comma = std::min(line.find(',', start), line.size());
    fields.push_back(Trim(line.substr(start, comma - start)));
    start = comma + 1;
  }
  if (fields.size() != 2 && fields.size() != 3) {
    return builder.Error("must be ms,add|remove,node or time,count");
  }
  MR_ASSIGN_OR_RETURN(const double time, Number(fields[0], builder));
  if (fields.size() == 3) {
    MR_RETURN_IF_ERROR(builder.MoveTo(time / 1000));
    const std::vector<std::string> names = {std::string(fields[2])};
    if (fields[1] == "add") return builder.Add(names);
    if (fields[1] == "remove") return builder.Remove(names);
    return builder.Error(fmt::format("\"{}\" is not a kind of event", fields[1].substr(0, 40)));
  }
  MR_RETURN_IF_ERROR(builder.MoveTo(time * count_unit_s));
  MR_ASSIGN_OR_RETURN(const double count, Number(fields[1], builder));
  if (count != std::floor(count) || count < 0 || count > kAvailabilityAliveMax) {
    return builder.Error(fmt::format("the count must be a whole number in [0, {}], got {:g}",
                                     int{kAvailabilityAliveMax}, count));
  }
  return builder.Count(static_cast<int>(count));
}

}  // namespace

Result<AvailabilityTrace> ParseAvailability(std::string_view text, double count_unit_s) {
  if (text.size() > kAvailabilityBytesMax) {
    return InvalidArgument(fmt::format("availability trace: {} bytes, at most {}", text.size(),
                                       size_t{kAvailabilityBytesMax}));
  }
  Builder builder;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    MR_RETURN_IF_ERROR(builder.NextLine());
    if (line.empty() || line.front() == '#') continue;
    MR_RETURN_IF_ERROR(line.front() == '[' ? JsonLine(line, builder)
                                           : CsvLine(line, count_unit_s, builder));
  }
  return builder.Finish();
}

AvailabilityTrace ConstantAvailability(int nodes, double end_s) {
  AvailabilityTrace trace{.end_s = end_s, .node_count = nodes};
  trace.most_alive = trace.fewest_alive = nodes;
  trace.events.push_back({.at_s = 0, .kind = AvailabilityKind::kAdd});
  for (int i = 0; i < nodes; ++i) trace.events[0].nodes.push_back(i);
  return trace;
}

}  // namespace millrace::sim
