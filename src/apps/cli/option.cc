#include "apps/cli/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cmath>

#include "base/host_port.h"
#include "base/log.h"
#include "base/suggest.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

std::string RangeText(int64_t min, int64_t max) {
  if (max == INT64_MAX || max == INT32_MAX) return fmt::format("at least {}", min);
  return fmt::format("in [{}, {}]", FormatReal(static_cast<double>(min)), max);
}

Result<int64_t> ParseInRange(const std::string& text, int64_t min, int64_t max) {
  auto value = ParseInt(text);
  if (value.ok() && *value >= min && *value <= max) return value;
  return InvalidArgument(
      fmt::format("must be an integer {}, got '{}'", RangeText(min, max), Printable(text)));
}

template <typename T>
Option BoundInt(std::string name, std::string value_name, T* target, int64_t min, int64_t max) {
  Option option;
  option.name = std::move(name);
  option.value_name = std::move(value_name);
  option.set = [target, min, max](const std::vector<std::string>& values) {
    MR_ASSIGN_OR_RETURN(const int64_t value, ParseInRange(values.back(), min, max));
    *target = static_cast<int>(value);
    return OkStatus();
  };
  return option;
}

template <typename T>
Option BoundReal(std::string name, std::string value_name, T* target, double min, double max) {
  Option option;
  option.name = std::move(name);
  option.value_name = std::move(value_name);
  option.set = [target, min, max](const std::vector<std::string>& values) {
    auto value = ParseReal(values.back());
    if (!value.ok() || *value < min || *value > max) {
      const std::string range = std::isinf(max)
                                    ? fmt::format("at least {}", FormatReal(min))
                                    : fmt::format("in [{}, {}]", FormatReal(min), FormatReal(max));
      return InvalidArgument(
          fmt::format("must be a number {}, got '{}'", range, Printable(values.back())));
    }
    *target = *value;
    return OkStatus();
  };
  return option;
}

// A default as a person would write it: 30 seconds that were computed from nanoseconds are "30",
// not "30.000000000000004".
std::string DefaultText(double value) { return fmt::format("{:.12g}", value); }

Result<bool> ParseBool(const std::string& text) {
  std::string lower;
  for (char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "true" || lower == "1" || lower == "yes" || lower == "on") return true;
  if (lower == "false" || lower == "0" || lower == "no" || lower == "off") return false;
  return InvalidArgument(fmt::format("must be true or false, got '{}'", Printable(text)));
}

}  // namespace

std::string Option::Display() const { return positional ? value_name : "--" + name; }

std::string Option::EnvironmentName() const {
  std::string out = "MILLRACE_";
  for (char c : name) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

Option IntOption(std::string name, std::string value_name, int* target, int64_t min, int64_t max) {
  MR_CHECK(max <= INT32_MAX) << name;
  Option option = BoundInt(std::move(name), std::move(value_name), target, min, max);
  option.default_text = std::to_string(*target);
  return option;
}

Option IntOption(std::string name, std::string value_name, std::optional<int>* target, int64_t min,
                 int64_t max) {
  MR_CHECK(max <= INT32_MAX) << name;
  return BoundInt(std::move(name), std::move(value_name), target, min, max);
}

Option IntOption(std::string name, std::string value_name, int64_t* target, int64_t min,
                 int64_t max) {
  Option option;
  option.name = std::move(name);
  option.value_name = std::move(value_name);
  option.default_text = std::to_string(*target);
  option.set = [target, min, max](const std::vector<std::string>& values) {
    MR_ASSIGN_OR_RETURN(*target, ParseInRange(values.back(), min, max));
    return OkStatus();
  };
  return option;
}

Option SeedOption(std::string name, std::optional<uint64_t>* target) {
  Option option;
  option.name = std::move(name);
  option.value_name = "N";
  if (target->has_value()) option.default_text = std::to_string(**target);
  option.set = [target](const std::vector<std::string>& values) {
    MR_ASSIGN_OR_RETURN(*target, ParseUint(values.back()));
    return OkStatus();
  };
  return option;
}

Option RealOption(std::string name, std::string value_name, double* target, double min,
                  double max) {
  Option option = BoundReal(std::move(name), std::move(value_name), target, min, max);
  option.default_text = DefaultText(*target);
  return option;
}

Option RealOption(std::string name, std::string value_name, std::optional<double>* target,
                  double min, double max) {
  return BoundReal(std::move(name), std::move(value_name), target, min, max);
}

Option TextOption(std::string name, std::string value_name, std::string* target) {
  Option option;
  option.name = std::move(name);
  option.value_name = std::move(value_name);
  option.default_text = *target;
  option.set = [target](const std::vector<std::string>& values) {
    if (values.back().empty()) return InvalidArgument("must not be empty");
    *target = values.back();
    return OkStatus();
  };
  return option;
}

Option TextListOption(std::string name, std::string value_name, std::vector<std::string>* target) {
  Option option;
  option.name = std::move(name);
  option.value_name = std::move(value_name);
  option.default_text = fmt::format("{}", fmt::join(*target, " "));
  option.arity = Arity::kMany;
  option.set = [target](const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      if (value.empty()) return InvalidArgument("must not hold an empty value");
    }
    *target = values;
    return OkStatus();
  };
  return option;
}

Option HostOption(std::string name, std::string value_name, std::string* target) {
  Option option = TextOption(std::move(name), std::move(value_name), target);
  option.set = [target](const std::vector<std::string>& values) {
    MR_ASSIGN_OR_RETURN(*target, ParseHost(values.back()));
    return OkStatus();
  };
  return option;
}

Option AddressOption(std::string name, std::string value_name, std::string* target) {
  Option option = TextOption(std::move(name), std::move(value_name), target);
  option.set = [target](const std::vector<std::string>& values) {
    MR_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(values.back()));
    *target = address.ToString();
    return OkStatus();
  };
  return option;
}

Option AddressOption(std::string name, std::string value_name, std::vector<std::string>* target) {
  Option option = TextListOption(std::move(name), std::move(value_name), target);
  option.set = [target](const std::vector<std::string>& values) {
    std::vector<std::string> addresses;
    for (const std::string& value : values) {
      MR_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(value));
      addresses.push_back(address.ToString());
    }
    *target = std::move(addresses);
    return OkStatus();
  };
  return option;
}

Option FlagOption(std::string name, bool* target) {
  Option option;
  option.name = std::move(name);
  option.arity = Arity::kFlag;
  if (*target) option.default_text = "on";
  option.set = [target](const std::vector<std::string>& values) {
    MR_ASSIGN_OR_RETURN(*target, ParseBool(values.back()));
    return OkStatus();
  };
  return option;
}

Option BytesOption(std::string name, std::optional<int64_t>* target) {
  return CustomOption(std::move(name), "BYTES", "", [target](const std::string& text) {
    MR_ASSIGN_OR_RETURN(*target, ParseBytes(text));
    return OkStatus();
  });
}

Option CustomOption(std::string name, std::string value_name, std::string default_text,
                    std::function<Status(const std::string&)> parse) {
  Option option;
  option.name = std::move(name);
  option.value_name = std::move(value_name);
  option.default_text = std::move(default_text);
  option.set = [parse = std::move(parse)](const std::vector<std::string>& values) {
    return parse(values.back());
  };
  return option;
}

Option RefusedOption(std::string name, std::string reason) {
  Option option;
  option.name = std::move(name);
  option.arity = Arity::kFlag;
  option.refused = std::move(reason);
  option.command_line_only = true;
  return option;
}

Status CheckChoice(const std::string& value, const std::vector<std::string>& choices) {
  for (const std::string& choice : choices) {
    if (choice == value) return OkStatus();
  }
  std::string message =
      fmt::format("must be one of {}, got '{}'", fmt::join(choices, ", "), Printable(value));
  if (auto guess = Suggest(value, choices)) message += fmt::format("; did you mean {}?", *guess);
  return InvalidArgument(std::move(message));
}

}  // namespace millrace::apps
