#include "apps/cli/tokenize.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/log.h"

namespace millrace::apps {
namespace {

// Converts "--max_model_len=5" to "--max-model-len=5", as some other servers spell options.
std::string WithDashes(std::string word) {
  const size_t end = std::min(word.find('='), word.size());
  std::replace(word.begin(), word.begin() + static_cast<ptrdiff_t>(end), '_', '-');
  return word;
}

std::string OptionNames(const Option& option) {
  std::string names = option.positional ? option.name : "--" + option.name;
  for (const std::string& alias : option.aliases) names += "," + alias;
  if (option.negatable) names += ",!--no-" + option.name;
  return names;
}

CLI::Option* Declare(CLI::App& app, const Option& option) {
  if (option.arity == Arity::kFlag) {
    return app.add_flag(OptionNames(option))->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  auto* declared = app.add_option(OptionNames(option), [](const CLI::results_t&) { return true; });
  if (option.arity == Arity::kMany) {
    declared->expected(-1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  } else {
    declared->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  // A list before a positional must not consume it. Whether the positional is present is checked
  // after reading the environment and the config file.
  if (option.positional && option.required) declared->required();
  return declared;
}

// CLI11's message is "1 required TEXT missing"; its first word is the option.
Status NeedsValue(const CLI::ParseError& error) {
  const std::string what = error.what();
  return InvalidArgument(Printable(what.substr(0, what.find(':'))) + " needs a value");
}

}  // namespace

Result<Tokens> Tokenize(const Command& command, const std::vector<std::string>& words) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<std::pair<const Option*, CLI::Option*>> declared;
  for (const Option& option : command.options) {
    declared.emplace_back(&option, Declare(app, option));
  }
  std::vector<std::string> reversed;
  bool only_positionals = false;
  for (const std::string& word : words) {
    only_positionals |= word == "--";
    reversed.push_back(word.starts_with("--") && !only_positionals ? WithDashes(word) : word);
  }
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(reversed);
  } catch (const CLI::RequiredError&) {  // see Declare
  } catch (const CLI::ArgumentMismatch& error) {
    return NeedsValue(error);
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(Printable(error.what()));
  }
  Tokens tokens;
  for (const auto& [option, parsed] : declared) {
    if (parsed->count() > 0) tokens.given[option->name] = parsed->results();
  }
  tokens.left = app.remaining();
  return tokens;
}

}  // namespace millrace::apps
