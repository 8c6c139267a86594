#include "apps/sampling_flags.h"

namespace millrace::apps {
namespace {

constexpr double kSmallest = 1e-9;  // where 0 itself is not allowed
constexpr int kSampledTokensMax = 1 << 24;

}  // namespace

void AddSamplingOptions(Command& command, SamplingFlags* flags) {
  constexpr char kGroup[] = "Sampling";
  command
      .Add(kGroup, IntOption("max-tokens", "N", &flags->max_tokens, 1, kSampledTokensMax),
           "Maximum number of tokens in an answer")
      .aliases = {"-n"};
  command.Add(kGroup, RealOption("temperature", "T", &flags->temperature, 0, 100),
              "0 always takes the likeliest token [default: the model's, else 1]");
  command.Add(kGroup, RealOption("top-p", "P", &flags->top_p, kSmallest, 1),
              "Sample from the likeliest tokens that together have probability P");
  command.Add(kGroup, IntOption("top-k", "K", &flags->top_k, 0, kSampledTokensMax),
              "Sample from the K likeliest tokens; 0: all");
  command.Add(kGroup, RealOption("min-p", "P", &flags->min_p, 0, 1),
              "Leave out tokens below P times the likeliest one's probability");
  command.Add(kGroup,
              RealOption("repetition-penalty", "X", &flags->repetition_penalty, kSmallest, 100),
              "Above 1: tokens of the prompt and the answer so far become less likely");
  command.Add(kGroup, RealOption("presence-penalty", "X", &flags->presence_penalty, -2, 2),
              "Above 0: tokens of the answer so far become less likely");
  command.Add(kGroup, RealOption("frequency-penalty", "X", &flags->frequency_penalty, -2, 2),
              "Like --presence-penalty, but for each time the token occurred");
  command.Add(kGroup, SeedOption("seed", &flags->seed),
              "The same seed and prompt give the same answer [default: drawn]");
  command.Add(kGroup, TextListOption("stop", "TEXT", &flags->stop),
              "Stop before any of these texts");
  command.Add(kGroup, FlagOption("ignore-eos", &flags->ignore_eos),
              "Continue after the model's end-of-text token");
}

Json ToFields(const SamplingFlags& flags) {
  Json fields = {{"max_tokens", flags.max_tokens}};
  const auto put = [&fields](const char* name, const auto& value) {
    if (value) fields[name] = *value;
  };
  put("temperature", flags.temperature);
  put("top_p", flags.top_p);
  put("top_k", flags.top_k);
  put("min_p", flags.min_p);
  put("repetition_penalty", flags.repetition_penalty);
  put("presence_penalty", flags.presence_penalty);
  put("frequency_penalty", flags.frequency_penalty);
  put("seed", flags.seed);
  if (!flags.stop.empty()) fields["stop"] = flags.stop;
  if (flags.ignore_eos) fields["ignore_eos"] = true;
  return fields;
}

}  // namespace millrace::apps
