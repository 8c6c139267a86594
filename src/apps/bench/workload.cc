#include "apps/bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text_lines.h"
#include "sim/load/arrivals.h"
#include "sim/load/trace.h"

namespace millrace::apps {
namespace {

// Separate random streams of one seed.
enum Stream : uint64_t { kLengths = 1, kPrefix, kTokens, kBlocks, kArrivals };

uint64_t StreamSeed(const WorkloadOptions& options, Stream stream, uint64_t index = 0) {
  return HashCounter(HashCounter(options.seed, stream), index);
}

TokenId TokenAt(uint64_t stream_seed, int position, int vocab_size) {
  return static_cast<TokenId>(HashCounter(stream_seed, static_cast<uint64_t>(position)) %
                              static_cast<uint64_t>(vocab_size));
}

void AppendTokens(uint64_t stream_seed, int count, int vocab_size, std::vector<TokenId>& out) {
  for (int i = 0; i < count; ++i) out.push_back(TokenAt(stream_seed, i, vocab_size));
}

struct Range {
  int low = 1, high = 1;
};

Range Around(int length, double ratio) {
  const auto low = static_cast<int>(std::floor(length * (1 - ratio)));
  const auto high = static_cast<int>(std::ceil(length * (1 + ratio)));
  return {std::max(1, low), std::max(1, high)};
}

std::vector<BenchRequest> RandomRequests(const WorkloadOptions& options, Range input,
                                         Range output) {
  std::vector<BenchRequest> requests(static_cast<size_t>(options.num_prompts));
  Rng lengths(StreamSeed(options, kLengths));
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto input_len = static_cast<int>(lengths.Between(input.low, input.high));
    requests[i].output_len = static_cast<int>(lengths.Between(output.low, output.high));
    AppendTokens(StreamSeed(options, kPrefix), options.prefix_len, options.vocab_size,
                 requests[i].prompt);
    AppendTokens(StreamSeed(options, kTokens, i), input_len, options.vocab_size,
                 requests[i].prompt);
  }
  return requests;
}

Result<std::string> ReadDataset(const WorkloadOptions& options) {
  if (options.path.empty()) return InvalidArgument("--dataset-path is missing");
  return ReadFile(options.path, sim::kTraceBytesMax);
}

Result<BenchRequest> ParseCustomLine(std::string_view line, const WorkloadOptions& options) {
  MR_ASSIGN_OR_RETURN(const Json object, ParseJson(line));
  if (!object.is_object() || !object.contains("prompt")) {
    return InvalidArgument("must be a JSON object with a 'prompt'");
  }
  BenchRequest request;
  const Json& prompt = object["prompt"];
  if (prompt.is_string()) {
    request.prompt_text = prompt.get<std::string>();
  } else if (prompt.is_array() && !prompt.empty()) {
    for (const Json& id : prompt) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
        return InvalidArgument("'prompt' must be a text or a list of token ids");
      }
      request.prompt.push_back(id.get<TokenId>());
    }
  } else {
    return InvalidArgument("'prompt' must be a text or a list of token ids");
  }
  request.output_len = options.custom_output_len;
  if (const auto at = object.find("output_tokens"); at != object.end()) {
    if (!at->is_number_unsigned() || *at == 0 || at->get<uint64_t>() > sim::kTraceTokensMax) {
      return InvalidArgument(
          fmt::format("'output_tokens' must be an integer in [1, {}]", sim::kTraceTokensMax));
    }
    request.output_len = at->get<int>();
  }
  return request;
}

Result<std::vector<BenchRequest>> CustomRequests(const WorkloadOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadDataset(options));
  std::vector<BenchRequest> requests;
  LineReader lines(text);
  while (auto line = lines.Next()) {
    if (line->empty()) continue;
    if (requests.size() == static_cast<size_t>(options.num_prompts)) break;
    auto request = ParseCustomLine(*line, options);
    if (!request.ok()) {
      return request.status().WithContext(
          fmt::format("{}: line {}", Printable(options.path), lines.number()));
    }
    requests.push_back(std::move(*request));
  }
  if (requests.empty()) {
    return InvalidArgument(fmt::format("{}: contains no prompt", Printable(options.path)));
  }
  return requests;
}

int Scaled(int length, double scale) {
  return std::max(1, static_cast<int>(std::lround(length * scale)));
}

// Makes the prompt of a trace entry: random tokens, except that equal prefix ids give equal tokens.
std::vector<TokenId> TracePrompt(const WorkloadOptions& options, const sim::TraceEntry& entry,
                                 size_t index) {
  std::vector<TokenId> prompt;
  const int length = Scaled(entry.input_tokens, options.length_scale);
  const int block_tokens = Scaled(entry.prefix.tokens_per_id, options.length_scale);
  for (int done = 0; done < length;) {
    const auto block = static_cast<size_t>(done / block_tokens);
    const bool named = block < entry.prefix.ids.size();
    const uint64_t seed =
        named ? StreamSeed(options, kBlocks, static_cast<uint64_t>(entry.prefix.ids[block]))
              : StreamSeed(options, kTokens, index);
    const int count = named ? std::min(block_tokens, length - done) : length - done;
    AppendTokens(seed, count, options.vocab_size, prompt);
    done += count;
  }
  return prompt;
}

Result<std::vector<BenchRequest>> TraceRequests(const WorkloadOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadDataset(options));
  auto entries = sim::ParseTrace(text, static_cast<size_t>(options.num_prompts));
  if (!entries.ok()) return entries.status().WithContext(Printable(options.path));
  if (std::isfinite(options.request_rate)) sim::RescaleRate(*entries, options.request_rate);
  std::vector<BenchRequest> requests;
  for (const sim::TraceEntry& entry : *entries) {
    BenchRequest request;
    request.prompt = TracePrompt(options, entry, requests.size());
    request.output_len = Scaled(entry.output_tokens, options.length_scale);
    request.arrival_s = entry.arrival_s;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace

bool FitLengths(int tokens, bool input_given, bool output_given, WorkloadOptions& options) {
  if (options.dataset != DatasetName::kRandom) return false;
  const auto longest = [&](int length) { return Around(length, options.range_ratio).high; };
  const auto fits = [&] {
    return longest(options.input_len) + longest(options.output_len) + options.prefix_len <= tokens;
  };
  bool lowered = false;
  // Halves the output only if it would take most of the context.
  while (!output_given && !fits() && longest(options.output_len) > tokens / 2 &&
         options.output_len > 1) {
    options.output_len /= 2;
    lowered = true;
  }
  while (!input_given && !fits() && options.input_len > 1) {
    --options.input_len;
    lowered = true;
  }
  while (!output_given && !fits() && options.output_len > 1) {
    --options.output_len;
    lowered = true;
  }
  return lowered;
}

Result<std::vector<BenchRequest>> MakeWorkload(const WorkloadOptions& options) {
  std::vector<BenchRequest> requests;
  switch (options.dataset) {
    case DatasetName::kTrace: return TraceRequests(options);
    case DatasetName::kCustom: {
      MR_ASSIGN_OR_RETURN(requests, CustomRequests(options));
      break;
    }
    case DatasetName::kRandom:
      requests = RandomRequests(options, Around(options.input_len, options.range_ratio),
                                Around(options.output_len, options.range_ratio));
      break;
    case DatasetName::kOrca:  // OSDI'22, section 6.2
      requests = RandomRequests(options, {32, 512}, {1, 128});
      break;
  }
  const auto times = sim::ArrivalTimes(static_cast<int>(requests.size()), options.request_rate,
                                       options.burstiness, StreamSeed(options, kArrivals));
  for (size_t i = 0; i < requests.size(); ++i) requests[i].arrival_s = times[i];
  return requests;
}

}  // namespace millrace::apps
