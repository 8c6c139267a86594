// The hot path: a decode step of many sequences is a handful of packed arrays, copied column by
// column.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

using Column = google::protobuf::RepeatedField<uint32_t>;

// Allocates `n` entries to be filled in place.
uint32_t* Grow(Column* column, size_t n) {
  column->Resize(static_cast<int>(n), 0);
  return column->mutable_data();
}

void PutIndices(const std::vector<int32_t>& from, Column* to) {
  std::copy(from.begin(), from.end(), Grow(to, from.size()));
}

void PutCopies(const std::vector<BlockCopy>& from, Column* to) {
  uint32_t* entry = Grow(to, from.size() * 2);
  for (const auto& [source, target] : from) {
    *entry++ = static_cast<uint32_t>(source);
    *entry++ = static_cast<uint32_t>(target);
  }
}

Status TakeCopies(std::string_view field, const Column& from, std::vector<BlockCopy>& out) {
  std::vector<int32_t> flat;
  MR_RETURN_IF_ERROR(TakeIndices(field, from, kCopiesPerStepMax * 2, flat));
  if (flat.size() % 2 != 0) return InvalidArgument(fmt::format("{} ends within a pair", field));
  out.reserve(flat.size() / 2);
  for (size_t i = 0; i < flat.size(); i += 2) out.push_back({flat[i], flat[i + 1]});
  return OkStatus();
}

// Sequences of one request are adjacent and share data, so the last one is the likeliest match.
template <typename Pointer>
uint32_t IndexOf(const Pointer& pointer, std::vector<Pointer>& seen) {
  const auto found = std::find(seen.rbegin(), seen.rend(), pointer);
  if (found != seen.rend()) return static_cast<uint32_t>(seen.rend() - found - 1);
  seen.push_back(pointer);
  return static_cast<uint32_t>(seen.size() - 1);
}

void PutStarted(const std::vector<SequenceStart>& started, proto::StepPlan& to) {
  std::vector<const SamplingParams*> params_seen;
  std::vector<const std::vector<TokenId>*> prompts_seen;
  for (const auto& [id, params, seed, prompt, output] : started) {
    MR_CHECK(params != nullptr && prompt != nullptr) << "a sequence starts with both";
    proto::SequenceStart& entry = *to.add_started();
    entry.set_id(id.value());
    entry.set_seed(seed);
    entry.set_params(IndexOf(params.get(), params_seen));
    if (to.params_size() < static_cast<int>(params_seen.size())) ToProto(*params, *to.add_params());
    entry.set_prompt(IndexOf(prompt.get(), prompts_seen));
    if (to.prompts_size() < static_cast<int>(prompts_seen.size())) {
      PutIndices(*prompt, to.add_prompts()->mutable_tokens());
    }
    if (output) PutIndices(*output, entry.mutable_output()->mutable_tokens());
  }
}

using SharedTokens = std::shared_ptr<const std::vector<TokenId>>;

Status TakeTokens(const proto::Tokens& from, SharedTokens& out) {
  auto tokens = std::make_shared<std::vector<TokenId>>();
  MR_RETURN_IF_ERROR(TakeIndices("tokens", from.tokens(), kPromptTokensMax, *tokens));
  out = std::move(tokens);
  return OkStatus();
}

Status TakeStarted(const proto::StepPlan& from, std::vector<SequenceStart>& out) {
  MR_RETURN_IF_ERROR(
      CheckCount("started", static_cast<size_t>(from.started_size()), kSequencesPerStepMax));
  MR_RETURN_IF_ERROR(
      CheckCount("params", static_cast<size_t>(from.params_size()), kSequencesPerStepMax));
  MR_RETURN_IF_ERROR(
      CheckCount("prompts", static_cast<size_t>(from.prompts_size()), kSequencesPerStepMax));
  std::vector<std::shared_ptr<const SamplingParams>> params;
  for (int i = 0; i < from.params_size(); ++i) {
    auto entry = std::make_shared<SamplingParams>();
    MR_RETURN_WITHIN(Element("params", i), FromProto(from.params(i), *entry));
    params.push_back(std::move(entry));
  }
  std::vector<SharedTokens> prompts;
  for (int i = 0; i < from.prompts_size(); ++i) {
    MR_RETURN_WITHIN(Element("prompts", i), TakeTokens(from.prompts(i), prompts.emplace_back()));
  }
  out.reserve(static_cast<size_t>(from.started_size()));
  for (const proto::SequenceStart& entry : from.started()) {
    if (entry.params() >= params.size()) return Missing("started: params");
    if (entry.prompt() >= prompts.size()) return Missing("started: prompt");
    out.push_back({.id = SequenceId(entry.id()),
                   .params = params[entry.params()],
                   .seed = entry.seed(),
                   .prompt = prompts[entry.prompt()]});
    if (!entry.has_output()) continue;
    MR_RETURN_WITHIN("started: output", TakeTokens(entry.output(), out.back().output));
  }
  return OkStatus();
}

// Rare: the columns are present only if a sequence needs them.
void PutLayers(size_t i, LayerRange layers, size_t sequences, proto::StepPlan& to) {
  if (to.first_only_layer_size() == 0) {
    Grow(to.mutable_first_only_layer(), sequences);
    Grow(to.mutable_end_only_layer(), sequences);
  }
  to.set_first_only_layer(static_cast<int>(i), static_cast<uint32_t>(layers.begin));
  to.set_end_only_layer(static_cast<int>(i), static_cast<uint32_t>(layers.end));
}

Status TakeLayers(const proto::StepPlan& from, int i, SequenceStep& out) {
  if (from.first_only_layer_size() == 0) return OkStatus();
  const uint32_t begin = from.first_only_layer(i), end = from.end_only_layer(i);
  if (begin == 0 && end == 0) return OkStatus();
  if (begin >= end || end > kLayersMax) {
    return InvalidArgument(fmt::format("layers [{}, {}) of at most {}", begin, end, kLayersMax));
  }
  if (out.logits != LogitsWanted::kNone)
    return InvalidArgument("a step of some layers cannot have logits");
  out.only_layers = LayerRange{static_cast<int>(begin), static_cast<int>(end)};
  return OkStatus();
}

void PutSequences(const std::vector<SequenceStep>& sequences, proto::StepPlan& to) {
  const size_t n = sequences.size();
  to.mutable_sequence()->Resize(static_cast<int>(n), 0);
  uint64_t* ids = to.mutable_sequence()->mutable_data();
  uint32_t* starts = Grow(to.mutable_start(), n);
  uint32_t* counts = Grow(to.mutable_num_tokens(), n);
  uint32_t* first_tokens = Grow(to.mutable_first_token(), n);
  uint32_t* keeps = Grow(to.mutable_keep_blocks(), n);
  uint32_t* first_blocks = Grow(to.mutable_first_new_block(), n);
  uint32_t* block_counts = Grow(to.mutable_num_new_blocks(), n);
  uint32_t* wanted = Grow(to.mutable_logits(), n);
  for (size_t i = 0; i < n; ++i) {
    const auto& [id, start, num_tokens, first_token, keep_blocks, first_new_block, num_new_blocks,
                 logits, only_layers] = sequences[i];
    ids[i] = id.value();
    starts[i] = static_cast<uint32_t>(start);
    counts[i] = static_cast<uint32_t>(num_tokens);
    first_tokens[i] = static_cast<uint32_t>(first_token);
    keeps[i] = static_cast<uint32_t>(keep_blocks);
    first_blocks[i] = static_cast<uint32_t>(first_new_block);
    block_counts[i] = static_cast<uint32_t>(num_new_blocks);
    wanted[i] = static_cast<uint32_t>(logits);
    if (only_layers) PutLayers(i, *only_layers, n, to);
  }
}

Status CheckColumns(const proto::StepPlan& from) {
  const int n = from.sequence_size();
  MR_RETURN_IF_ERROR(CheckCount("sequences", static_cast<size_t>(n), kSequencesPerStepMax));
  const std::pair<const char*, int> sizes[] = {
      {"start", from.start_size()},
      {"num_tokens", from.num_tokens_size()},
      {"first_token", from.first_token_size()},
      {"keep_blocks", from.keep_blocks_size()},
      {"first_new_block", from.first_new_block_size()},
      {"num_new_blocks", from.num_new_blocks_size()},
      {"logits", from.logits_size()},
      {"first_only_layer", from.first_only_layer_size() == 0 ? n : from.first_only_layer_size()},
      {"end_only_layer", from.first_only_layer_size() == 0 ? n + from.end_only_layer_size()
                                                           : from.end_only_layer_size()},
  };
  for (const auto& [field, size] : sizes) {
    if (size == n) continue;
    return InvalidArgument(fmt::format("{} has {} entries for {} sequences", field, size, n));
  }
  return OkStatus();
}

// Checks one SequenceStep against the arrays that it points into.
Status CheckSequence(const SequenceStep& s, uint32_t logits, size_t tokens, size_t blocks) {
  const auto end = [](int32_t first, int32_t count) {
    return static_cast<uint64_t>(first) + static_cast<uint64_t>(count);
  };
  if (s.num_tokens < 1) return InvalidArgument("num_tokens must be at least 1");
  if (end(s.start, s.num_tokens) > static_cast<uint64_t>(INT32_MAX)) {
    return InvalidArgument("start + num_tokens is beyond 2147483647");
  }
  if (end(s.first_token, s.num_tokens) > tokens) {
    return InvalidArgument(fmt::format("first_token + num_tokens = {} is beyond {} tokens",
                                       end(s.first_token, s.num_tokens), tokens));
  }
  if (end(s.first_new_block, s.num_new_blocks) > blocks) {
    return InvalidArgument(fmt::format("first_new_block + num_new_blocks = {} is beyond {} blocks",
                                       end(s.first_new_block, s.num_new_blocks), blocks));
  }
  if (static_cast<size_t>(s.keep_blocks) > kBlocksPerMessageMax) {
    return InvalidArgument("keep_blocks is beyond the limit of blocks");
  }
  if (logits > static_cast<uint32_t>(LogitsWanted::kAll)) {
    return OutOfRange("logits", logits, 0, static_cast<uint32_t>(LogitsWanted::kAll));
  }
  return OkStatus();
}

Status TakeSequences(const proto::StepPlan& from, StepPlan& out) {
  MR_RETURN_IF_ERROR(CheckColumns(from));
  const auto n = static_cast<size_t>(from.sequence_size());
  out.sequences.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const int k = static_cast<int>(i);
    const uint32_t all = from.start(k) | from.num_tokens(k) | from.first_token(k) |
                         from.keep_blocks(k) | from.first_new_block(k) | from.num_new_blocks(k);
    if (all > static_cast<uint32_t>(INT32_MAX)) {
      return InvalidArgument(Element("sequences", k) + " holds a number beyond 2147483647");
    }
    SequenceStep& s = out.sequences[i];
    s = {.id = SequenceId(from.sequence(k)),
         .start = static_cast<int32_t>(from.start(k)),
         .num_tokens = static_cast<int32_t>(from.num_tokens(k)),
         .first_token = static_cast<int32_t>(from.first_token(k)),
         .keep_blocks = static_cast<int32_t>(from.keep_blocks(k)),
         .first_new_block = static_cast<int32_t>(from.first_new_block(k)),
         .num_new_blocks = static_cast<int32_t>(from.num_new_blocks(k)),
         .logits = static_cast<LogitsWanted>(from.logits(k))};
    if (Status wrong = CheckSequence(s, from.logits(k), out.tokens.size(), out.blocks.size());
        !wrong.ok()) {
      return wrong.WithContext(Element("sequences", k));
    }
    MR_RETURN_WITHIN(Element("sequences", k), TakeLayers(from, k, s));
  }
  return OkStatus();
}

Status TakePlan(const proto::StepPlan& from, StepPlan& out) {
  out.id = StepId(from.id());
  MR_RETURN_IF_ERROR(TakeStarted(from, out.started));
  MR_RETURN_IF_ERROR(
      CheckCount("released", static_cast<size_t>(from.released_size()), kSequencesPerStepMax));
  out.released.reserve(static_cast<size_t>(from.released_size()));
  for (const uint64_t id : from.released()) out.released.emplace_back(id);
  MR_RETURN_IF_ERROR(TakeIndices("tokens", from.tokens(), kTokensPerStepMax, out.tokens));
  MR_RETURN_IF_ERROR(TakeIndices("blocks", from.blocks(), kBlocksPerMessageMax, out.blocks));
  MR_RETURN_IF_ERROR(TakeSequences(from, out));
  MR_RETURN_IF_ERROR(TakeCopies("swap_out", from.swap_out(), out.swap_out));
  MR_RETURN_IF_ERROR(TakeCopies("swap_in", from.swap_in(), out.swap_in));
  return TakeCopies("copies", from.copies(), out.copies);
}

}  // namespace

void ToProto(const PipelineStep& from, proto::PipelineStep& to) {
  const auto& [pipeline, plan, returns] = from;
  const auto& [id, started, released, sequences, tokens, blocks, swap_out, swap_in, copies] = *plan;
  to.set_pipeline(pipeline.value());
  to.set_returns(returns);
  proto::StepPlan& out = *to.mutable_plan();
  out.set_id(id.value());
  PutStarted(started, out);
  out.mutable_released()->Reserve(static_cast<int>(released.size()));
  for (const SequenceId sequence : released) out.add_released(sequence.value());
  PutSequences(sequences, out);
  PutIndices(tokens, out.mutable_tokens());
  PutIndices(blocks, out.mutable_blocks());
  PutCopies(swap_out, out.mutable_swap_out());
  PutCopies(swap_in, out.mutable_swap_in());
  PutCopies(copies, out.mutable_copies());
}

Status FromProto(const proto::PipelineStep& from, PipelineStep& out) {
  out.pipeline = PipelineId(from.pipeline());
  out.returns = from.returns();
  if (!from.has_plan()) return Missing("plan");
  auto plan = std::make_shared<StepPlan>();
  MR_RETURN_WITHIN("plan", TakePlan(from.plan(), *plan));
  out.plan = std::move(plan);
  return OkStatus();
}

}  // namespace millrace::wire
