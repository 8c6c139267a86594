#include "sim/load/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include "base/json.h"
#include "base/log.h"
#include "base/text_lines.h"
#include "base/units.h"

namespace millrace::sim {
namespace {

constexpr size_t kColumnsMax = 64;
constexpr double kTraceSecondsMax = 1e9;
constexpr std::string_view kPrefixId = "prefix_id", kPrefixTokens = "prefix_tokens";

std::vector<std::string_view> Columns(std::string_view line) {
  std::vector<std::string_view> columns;
  while (columns.size() < kColumnsMax) {
    const size_t comma = line.find(',');
    columns.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) break;
    line.remove_prefix(comma + 1);
  }
  return columns;
}

// A number of exactly `digits` digits at `at`.
std::optional<int> Digits(std::string_view text, size_t at, size_t digits) {
  if (at + digits > text.size()) return std::nullopt;
  int value = 0;
  for (char c : text.substr(at, digits)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

// "2023-11-16 18:15:46.6805900" as seconds since 1970.
std::optional<double> ParseTimestamp(std::string_view text) {
  const auto year = Digits(text, 0, 4), month = Digits(text, 5, 2), day = Digits(text, 8, 2);
  const auto hour = Digits(text, 11, 2), minute = Digits(text, 14, 2), second = Digits(text, 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  double fraction = 0, unit = 0.1;
  if (text.size() > 19 && text[19] == '.') {
    for (size_t i = 20; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, unit /= 10) {
      fraction += (text[i] - '0') * unit;
    }
  }
  return static_cast<double>(days) * 86400 + *hour * 3600 + *minute * 60 + *second + fraction;
}

Result<int> TokenCount(std::string_view text, std::string_view name) {
  const auto value = ParseInt(text);
  if (!value.ok() || *value < 0 || *value > kTraceTokensMax) {
    return InvalidArgument(fmt::format("{} must be an integer in [0, {}], got '{}'", name,
                                       kTraceTokensMax, Printable(text)));
  }
  return static_cast<int>(*value);
}

// A comma-separated trace format: the names of its columns, and how its times are written.
struct Dialect {
  std::string_view time, input, output;
  bool wall_clock;
};
constexpr Dialect kDialects[] = {
    {"TIMESTAMP", "ContextTokens", "GeneratedTokens", true},
    {"arrival_s", "prompt_tokens", "output_tokens", false},
    {"arrival_timestamp", "prompt_size", "token_size", false},
};

struct CsvColumns {
  const Dialect* dialect = nullptr;
  size_t time = 0, input = 0, output = 0;
  std::optional<size_t> prefix_id, prefix_tokens;  // both or none

  size_t last() const {
    return std::max({time, input, output, prefix_id.value_or(0), prefix_tokens.value_or(0)});
  }
};

Result<CsvColumns> FindColumns(std::string_view header) {
  const auto names = Columns(header);
  const auto find = [&names](std::string_view name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  for (const Dialect& d : kDialects) {
    CsvColumns columns{&d, find(d.time), find(d.input), find(d.output), {}, {}};
    if (columns.last() >= names.size()) continue;
    const size_t id = find(kPrefixId), tokens = find(kPrefixTokens);
    if ((id < names.size()) != (tokens < names.size())) {
      return InvalidArgument(
          fmt::format("line 1: the columns {} and {} need each other", kPrefixId, kPrefixTokens));
    }
    if (id < names.size()) {
      columns.prefix_id = id;
      columns.prefix_tokens = tokens;
    }
    return columns;
  }
  return InvalidArgument(fmt::format(
      "line 1: not a trace: the columns must be TIMESTAMP,ContextTokens,GeneratedTokens or "
      "arrival_s,prompt_tokens,output_tokens (or JSON lines with timestamp, input_length, "
      "output_length), got '{}'",
      Printable(header)));
}

Result<double> ArrivalTime(std::string_view text, const Dialect& dialect) {
  if (dialect.wall_clock) {
    if (const auto time = ParseTimestamp(text)) return *time;
    return InvalidArgument(fmt::format("{} must read like 2023-11-16 18:15:46.68, got '{}'",
                                       dialect.time, Printable(text)));
  }
  const auto time = ParseReal(text);
  if (time.ok() && *time >= 0 && *time <= kTraceSecondsMax) return *time;
  return InvalidArgument(fmt::format("{} must be seconds in [0, {:g}], got '{}'", dialect.time,
                                     kTraceSecondsMax, Printable(text)));
}

// Two empty fields: the prompt shares nothing.
Result<PromptPrefix> ParsePrefix(std::string_view id, std::string_view tokens, int prompt_tokens) {
  PromptPrefix prefix;
  if (id.empty() && tokens.empty()) return prefix;
  const auto number = ParseInt(id);
  if (!number.ok()) {
    return InvalidArgument(
        fmt::format("{} must be an integer, or empty, got '{}'", kPrefixId, Printable(id)));
  }
  MR_ASSIGN_OR_RETURN(prefix.tokens_per_id, TokenCount(tokens, kPrefixTokens));
  if (prefix.tokens_per_id < 1 || prefix.tokens_per_id > prompt_tokens) {
    return InvalidArgument(fmt::format("{} must be in [1, {}], the prompt's length, got {}",
                                       kPrefixTokens, prompt_tokens, prefix.tokens_per_id));
  }
  prefix.ids.push_back(*number);
  return prefix;
}

Result<TraceEntry> ParseCsvLine(std::string_view line, const CsvColumns& columns) {
  const auto fields = Columns(line);
  if (columns.last() >= fields.size()) {
    return InvalidArgument(fmt::format("has {} columns, too few", fields.size()));
  }
  const Dialect& dialect = *columns.dialect;
  TraceEntry entry;
  MR_ASSIGN_OR_RETURN(entry.arrival_s, ArrivalTime(fields[columns.time], dialect));
  MR_ASSIGN_OR_RETURN(entry.input_tokens, TokenCount(fields[columns.input], dialect.input));
  MR_ASSIGN_OR_RETURN(entry.output_tokens, TokenCount(fields[columns.output], dialect.output));
  if (columns.prefix_id) {
    MR_ASSIGN_OR_RETURN(entry.prefix,
                        ParsePrefix(fields[*columns.prefix_id], fields[*columns.prefix_tokens],
                                    entry.input_tokens));
  }
  return entry;
}

Result<int> CountField(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_number_integer()) {
    return InvalidArgument(fmt::format("'{}' must be an integer", name));
  }
  return TokenCount(at->dump(), name);
}

Result<TraceEntry> ParseMooncakeLine(std::string_view line) {
  MR_ASSIGN_OR_RETURN(const Json object, ParseJson(line));
  if (!object.is_object()) return InvalidArgument("must be a JSON object");
  TraceEntry entry;
  const auto time = object.find("timestamp");
  if (time == object.end() || !time->is_number() || time->get<double>() < 0 ||
      time->get<double>() > kTraceSecondsMax * 1000) {
    return InvalidArgument(fmt::format("'timestamp' must be a number of milliseconds in [0, {:g}]",
                                       kTraceSecondsMax * 1000));
  }
  entry.arrival_s = time->get<double>() / 1000;
  MR_ASSIGN_OR_RETURN(entry.input_tokens, CountField(object, "input_length"));
  MR_ASSIGN_OR_RETURN(entry.output_tokens, CountField(object, "output_length"));
  const auto ids = object.find("hash_ids");
  if (ids == object.end()) return entry;
  if (!ids->is_array() || ids->size() > kTraceHashIdsMax) {
    return InvalidArgument(
        fmt::format("'hash_ids' must be a list of at most {} integers", kTraceHashIdsMax));
  }
  const size_t blocks = (static_cast<size_t>(entry.input_tokens) + kMooncakeBlockTokens - 1) /
                        static_cast<size_t>(kMooncakeBlockTokens);
  if (ids->size() > blocks) {
    return InvalidArgument(
        fmt::format("'hash_ids' has {} ids, but a prompt of {} tokens has {} blocks of {} tokens",
                    ids->size(), entry.input_tokens, blocks, kMooncakeBlockTokens));
  }
  entry.prefix.tokens_per_id = kMooncakeBlockTokens;
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) return InvalidArgument("'hash_ids' must hold integers");
    entry.prefix.ids.push_back(id.get<int64_t>());
  }
  return entry;
}

}  // namespace

Result<std::vector<TraceEntry>> ParseTrace(std::string_view text, size_t entries_max) {
  std::vector<TraceEntry> entries;
  LineReader lines(text);
  std::optional<CsvColumns> columns;
  while (auto line = lines.Next()) {
    if (line->empty()) continue;
    if (!columns && line->front() != '{') {
      MR_ASSIGN_OR_RETURN(columns, FindColumns(*line));
      continue;
    }
    if (entries.size() == entries_max) break;
    auto entry = columns ? ParseCsvLine(*line, *columns) : ParseMooncakeLine(*line);
    if (!entry.ok()) return entry.status().WithContext(fmt::format("line {}", lines.number()));
    if (!entries.empty() && entry->arrival_s < entries.back().arrival_s) {
      return InvalidArgument(
          fmt::format("line {}: arrives {:g} s before the request above it; sort the trace by time",
                      lines.number(), entries.back().arrival_s - entry->arrival_s));
    }
    entries.push_back(std::move(*entry));
  }
  if (entries.empty()) {
    return InvalidArgument(fmt::format("line {}: holds no request", std::max(lines.number(), 1)));
  }
  const double first = entries.front().arrival_s;
  for (TraceEntry& entry : entries) entry.arrival_s -= first;
  return entries;
}

void RescaleRate(std::vector<TraceEntry>& entries, double rate) {
  MR_CHECK(rate > 0) << rate;
  if (entries.empty() || entries.back().arrival_s <= 0) return;
  const double wanted_s = static_cast<double>(entries.size() - 1) / rate;
  const double factor = wanted_s / entries.back().arrival_s;
  for (TraceEntry& entry : entries) entry.arrival_s *= factor;
}

}  // namespace millrace::sim
