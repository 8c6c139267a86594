#include "apps/commands/workload_flags.h"

#include "apps/cli/parse.h"
#include "sim/load/trace.h"

namespace millrace::apps {

void AddWorkloadOptions(Command& command, WorkloadOptions* options) {
  constexpr char kGroup[] = "Workload";
  command.Add(
      kGroup,
      ChoiceOption<DatasetName>("dataset-name", &options->dataset,
                                {{"random", DatasetName::kRandom},
                                 {"custom", DatasetName::kCustom},
                                 {"trace", DatasetName::kTrace},
                                 {"orca", DatasetName::kOrca}}),
      "random: lengths as given; custom: JSON lines with a prompt; trace: a published trace "
      "(Azure CSV, Mooncake JSON lines); orca: input U(32,512), output U(1,128) tokens");
  Option path = TextOption("dataset-path", "FILE", &options->path);
  path.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(path), "The file of a custom or trace workload");
  command.Add(kGroup, IntOption("num-prompts", "N", &options->num_prompts, 1, 10'000'000),
              "Requests to send; with a file, its first N");
  command
      .Add(kGroup,
           IntOption("random-input-len", "TOKENS", &options->input_len, 1, sim::kTraceTokensMax),
           "Tokens of each random prompt")
      .aliases = {"--input-len"};
  command
      .Add(kGroup,
           IntOption("random-output-len", "TOKENS", &options->output_len, 1, sim::kTraceTokensMax),
           "Output tokens requested for each random prompt")
      .aliases = {"--output-len"};
  command.Add(kGroup, RealOption("random-range-ratio", "R", &options->range_ratio, 0, 1),
              "Random lengths are uniform in length * [1 - R, 1 + R]");
  command.Add(
      kGroup,
      IntOption("random-prefix-len", "TOKENS", &options->prefix_len, 0, sim::kTraceTokensMax),
      "Tokens of a prefix that all random prompts share, besides their own");
  command.Add(kGroup, IntOption("random-vocab-size", "N", &options->vocab_size, 1, 1 << 22),
              "Random token ids are below N");
  command.Add(kGroup,
              IntOption("custom-output-len", "TOKENS", &options->custom_output_len, 1,
                        sim::kTraceTokensMax),
              "Output tokens requested for custom prompts that do not set a number");
  command.Add(kGroup, RealOption("trace-length-scale", "X", &options->length_scale, 1e-6, 1e3),
              "Factor on the lengths of a trace");
}

Status ValidateWorkload(const WorkloadOptions& options, const std::set<std::string>& given) {
  const bool needs_file =
      options.dataset == DatasetName::kCustom || options.dataset == DatasetName::kTrace;
  if (needs_file && options.path.empty()) {
    return InvalidArgument("--dataset-name custom and trace need --dataset-path FILE");
  }
  if (!needs_file && !options.path.empty()) {
    return InvalidArgument("--dataset-path needs --dataset-name custom or trace");
  }
  if (options.dataset != DatasetName::kRandom) {
    MR_RETURN_IF_ERROR(RefuseGiven(
        given, {"random-input-len", "random-output-len", "random-range-ratio", "random-prefix-len"},
        "needs --dataset-name random"));
  }
  if (options.dataset == DatasetName::kCustom) {
    MR_RETURN_IF_ERROR(RefuseGiven(given, {"random-vocab-size"},
                                   "is for random token ids, and --dataset-name custom has texts"));
  } else {
    MR_RETURN_IF_ERROR(RefuseGiven(given, {"custom-output-len"}, "needs --dataset-name custom"));
  }
  if (options.dataset != DatasetName::kTrace) {
    return RefuseGiven(given, {"trace-length-scale"}, "needs --dataset-name trace");
  }
  return OkStatus();
}

}  // namespace millrace::apps
