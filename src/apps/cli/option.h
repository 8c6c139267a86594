// Option: one flag or positional argument, described once. Parsing, --help, the man page, shell
// completion, environment names and config keys all use this description.
//
// The factory functions below bind a description to a variable. The variable's value at that moment
// is the default that --help shows. One thread, at program start.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace::apps {

enum class Arity {
  kFlag,  // present or absent
  kOne,   // one value; the last one counts
  kMany,  // one or more values, may be repeated
};

enum class ValueKind { kText, kFile, kFolder };  // what the shell completes

struct Option {
  std::string name;                  // "max-model-len": --max-model-len, or MODEL when positional
  std::vector<std::string> aliases;  // with their dashes: "-c"
  std::string value_name;            // "TOKENS"; empty for a flag
  std::string help;                  // starts upper case, no full stop at the end
  std::string group;                 // the heading it appears under
  std::string default_text;          // as shown; empty: none
  std::vector<std::string> choices;  // the only allowed values, if there are any
  Arity arity = Arity::kOne;
  ValueKind kind = ValueKind::kText;
  bool positional = false;
  bool required = false;
  bool negatable = false;          // a flag with --no-NAME
  bool command_line_only = false;  // has neither environment name nor config key
  std::string refused;             // a known option that is not offered: the error text

  // Stores the values. The error message continues the option's name: "must be an integer in [1,
  // 65535], got 'x'".
  std::function<Status(const std::vector<std::string>& values)> set;

  std::string Display() const;          // "--port" or "MODEL"
  std::string EnvironmentName() const;  // "MILLRACE_PORT"
};

Option IntOption(std::string name, std::string value_name, int* target, int64_t min, int64_t max);
Option IntOption(std::string name, std::string value_name, int64_t* target, int64_t min,
                 int64_t max);
Option IntOption(std::string name, std::string value_name, std::optional<int>* target, int64_t min,
                 int64_t max);
Option SeedOption(std::string name, std::optional<uint64_t>* target);
Option RealOption(std::string name, std::string value_name, double* target, double min, double max);
// Unbounded if `max` is infinite.
Option RealOption(std::string name, std::string value_name, std::optional<double>* target,
                  double min, double max);
Option TextOption(std::string name, std::string value_name, std::string* target);
Option TextListOption(std::string name, std::string value_name, std::vector<std::string>* target);
// A host alone, in every spelling of base/host_port.h; stored without brackets.
Option HostOption(std::string name, std::string value_name, std::string* target);
// HOST:PORT, stored as HostPort::ToString writes it. With a list, several.
Option AddressOption(std::string name, std::string value_name, std::string* target);
Option AddressOption(std::string name, std::string value_name, std::vector<std::string>* target);
Option FlagOption(std::string name, bool* target);
// Accepts "2GiB", "512MiB", "1.5GB", "1048576".
Option BytesOption(std::string name, std::optional<int64_t>* target);
// `parse` checks and stores one text.
Option CustomOption(std::string name, std::string value_name, std::string default_text,
                    std::function<Status(const std::string&)> parse);

// Target: E, or std::optional<E> if an absent option has its own meaning.
template <typename E, typename Target>
Option ChoiceOption(std::string name, Target* target,
                    std::vector<std::pair<std::string, E>> choices);

// An option of other servers, or of an earlier version, that this one does not support. `reason` is
// the error text.
Option RefusedOption(std::string name, std::string reason);

// --- implementation of the template ---

// The error for a value outside `choices`; OK if it is one of them.
Status CheckChoice(const std::string& value, const std::vector<std::string>& choices);

template <typename E, typename Target>
Option ChoiceOption(std::string name, Target* target,
                    std::vector<std::pair<std::string, E>> choices) {
  Option option;
  option.name = std::move(name);
  for (const auto& [text, value] : choices) {
    option.choices.push_back(text);
    if (value == *target) option.default_text = text;
    option.value_name += (option.value_name.empty() ? "" : "|") + text;
  }
  option.set = [target, choices, names = option.choices](const std::vector<std::string>& values) {
    MR_RETURN_IF_ERROR(CheckChoice(values.back(), names));
    for (const auto& [text, value] : choices) {
      if (text == values.back()) *target = value;
    }
    return OkStatus();
  };
  return option;
}

}  // namespace millrace::apps
