#include "apps/common/sampling_flags.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace millrace::apps {
namespace {

constexpr double kSmallest = 1e-9;  // where 0 itself is not allowed
constexpr int kSampledTokensMax = 1 << 24;

Json JsonOf(const auto& value) { return value; }
template <typename T>
Json JsonOf(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
// As in the API: an object of biases by token id.
Json JsonOf(const std::vector<std::pair<TokenId, float>>& biases) {
  Json object = Json::object();
  for (const auto& [token, bias] : biases) object[std::to_string(token)] = bias;
  return object;
}

// The option's name is the field's, with dashes.
std::string FieldOf(std::string option_name) {
  std::ranges::replace(option_name, '-', '_');
  return option_name;
}

}  // namespace

void AddSamplingOptions(Command& command, SamplingFlags* flags) {
  SamplingParams& params = flags->params;
  // Adds options whose default is the model's, and notes which were given.
  const auto add = [&](Option option, std::string help) -> Option& {
    option.default_text.clear();
    option.set = [set = std::move(option.set), field = FieldOf(option.name),
                  flags](const std::vector<std::string>& values) {
      MR_RETURN_IF_ERROR(set(values));
      flags->given.insert(field);
      return OkStatus();
    };
    return command.Add("Sampling", std::move(option), std::move(help));
  };
  Option& max_tokens = add(IntOption("max-tokens", "N", &params.max_tokens, 1, kSampledTokensMax),
                           "Maximum number of tokens in an answer");
  max_tokens.aliases = {"-n"};
  max_tokens.default_text = std::to_string(*params.max_tokens);
  add(RealOption("temperature", "T", &params.temperature, 0, 100),
      "0 always takes the likeliest token [default: the model's, else 1]");
  add(RealOption("top-p", "P", &params.top_p, kSmallest, 1),
      "Sample from the likeliest tokens that together have probability P");
  add(IntOption("top-k", "K", &params.top_k, 0, kSampledTokensMax),
      "Sample from the K likeliest tokens; 0: all");
  add(RealOption("min-p", "P", &params.min_p, 0, 1),
      "Leave out tokens below P times the likeliest one's probability");
  add(RealOption("repetition-penalty", "X", &params.repetition_penalty, kSmallest, 100),
      "Above 1: tokens of the prompt and the answer so far become less likely");
  add(RealOption("presence-penalty", "X", &params.presence_penalty, -2, 2),
      "Above 0: tokens of the answer so far become less likely");
  add(RealOption("frequency-penalty", "X", &params.frequency_penalty, -2, 2),
      "Like --presence-penalty, but for each time the token occurred");
  add(SeedOption("seed", &params.seed),
      "The same seed and prompt give the same answer [default: drawn]");
  add(TextListOption("stop", "TEXT", &params.stop), "Stop before any of these texts");
  add(FlagOption("ignore-eos", &params.ignore_eos), "Continue after the model's end-of-text token");
}

Json ToFields(const SamplingFlags& flags) {
  Json fields = Json::object();
  ForEachField(flags.params, [&](const SamplingField& field, const auto& value) {
    if (flags.given.contains(field.name)) fields[field.name] = JsonOf(value);
  });
  return fields;
}

}  // namespace millrace::apps
