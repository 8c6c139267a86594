#include "experiments/lib/helix/simulator_ini.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "plan/io/text_fields.h"

namespace millrace::experiments::helix {
namespace {

constexpr std::pair<std::string_view, double> kUnits[] = {
    {"kbps", 1e3}, {"mbps", 1e6}, {"gbps", 1e9}, {"KB", 1e3},        {"MB", 1e6},
    {"GB", 1e9},   {"Byte", 1},   {"Sec", 1},    {"MilliSec", 1e-3},
};

std::string_view Unquoted(std::string_view text) {
  text = plan::Trimmed(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
      text.back() == text.front()) {
    return text.substr(1, text.size() - 2);
  }
  return text;
}

// The items between the brackets; none if the brackets are missing.
std::optional<std::vector<std::string_view>> Items(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  std::string_view rest = plan::Trimmed(text.substr(1, text.size() - 2));
  std::vector<std::string_view> items;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    items.push_back(Unquoted(rest.substr(0, comma)));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return items;
}

}  // namespace

Status SimulatorIni::Error(int line, const std::string& what) const {
  return InvalidArgument(fmt::format("{}:{}: {}", Printable(name_), line, what));
}

Result<SimulatorIni> SimulatorIni::Parse(std::string_view text, std::string_view name) {
  SimulatorIni ini;
  ini.name_ = name;
  if (text.size() > kBytesMax) return ini.Error(1, "larger than 16 MiB");
  plan::LineReader lines(text);
  std::map<std::string, Value>* section = nullptr;
  while (lines.Next()) {
    const std::string_view line = plan::Trimmed(lines.text());
    if (line.front() == '[' && line.back() == ']') {
      section = &ini.sections_[std::string(line.substr(1, line.size() - 2))];
      continue;
    }
    const size_t equals = line.find('=');
    if (section == nullptr || equals == std::string_view::npos) {
      return ini.Error(lines.line(), "expected [section], then key=value");
    }
    (*section)[std::string(plan::Trimmed(line.substr(0, equals)))] = {
        std::string(plan::Trimmed(line.substr(equals + 1))), lines.line()};
  }
  return ini;
}

Result<SimulatorIni::Value> SimulatorIni::Find(const std::string& section,
                                               const std::string& key) const {
  const auto s = sections_.find(section);
  if (s == sections_.end()) {
    return InvalidArgument(
        fmt::format("{}: no section [{}]", Printable(name_), Printable(section)));
  }
  const auto value = s->second.find(key);
  if (value == s->second.end()) {
    return InvalidArgument(
        fmt::format("{}: no {} in [{}]", Printable(name_), key, Printable(section)));
  }
  return value->second;
}

Result<double> SimulatorIni::Quantity(const std::string& section, const std::string& key) const {
  MR_ASSIGN_OR_RETURN(const Value value, Find(section, key));
  const std::string_view text = value.text;
  const size_t star = text.find('*');
  const auto number = plan::NumberIn(plan::Trimmed(text.substr(0, star)));
  if (!number) return Error(value.line, key + " must be a number, with \"* unit\" if it has one");
  if (star == std::string_view::npos) return *number;
  const std::string_view unit = plan::Trimmed(text.substr(star + 1));
  for (const auto& [known, factor] : kUnits) {
    if (unit == known) return *number * factor;
  }
  return Error(value.line, "unknown unit \"" + std::string(Printable(unit)) + "\" of " + key);
}

Result<std::string> SimulatorIni::Name(const std::string& section, const std::string& key) const {
  MR_ASSIGN_OR_RETURN(const Value value, Find(section, key));
  return std::string(Unquoted(value.text));
}

Result<std::vector<std::string>> SimulatorIni::Names(const std::string& section,
                                                     const std::string& key) const {
  MR_ASSIGN_OR_RETURN(const Value value, Find(section, key));
  const auto items = Items(value.text);
  if (!items) return Error(value.line, key + " must be a list in brackets");
  return std::vector<std::string>(items->begin(), items->end());
}

}  // namespace millrace::experiments::helix
