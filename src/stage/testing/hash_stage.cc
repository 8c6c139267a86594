#include "stage/testing/hash_stage.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace millrace::stage {
namespace {

constexpr int kTokensPerSequenceMax = 1 << 20;
constexpr int kTokensPerStepMax = 1 << 20;

std::string Name(PipelineId pipeline) { return "pipeline " + std::to_string(pipeline.value()); }

}  // namespace

HashStage::HashStage(const HashModel& model, LayerRange layers)
    : HashStage(model, layers, {0, model.heads}) {}

HashStage::HashStage(const HashModel& model, LayerRange layers, std::pair<int, int> heads)
    : model_(model), layers_(layers), heads_(heads) {
  MR_CHECK(0 <= layers.begin && layers.begin < layers.end && layers.end <= model.num_layers);
  MR_CHECK(0 <= heads.first && heads.first < heads.second && heads.second <= model.heads);
}

Status HashStage::OpenPipeline(PipelineId pipeline, const StagePipeline& options) {
  const LayerRange& range = options.layers;
  if (range.begin < layers_.begin || range.begin >= range.end || range.end > layers_.end) {
    return InvalidArgument("the stage does not hold the layers of " + Name(pipeline));
  }
  if (options.block_size < 1 || options.num_blocks < 1 || options.num_host_blocks < 0) {
    return InvalidArgument(Name(pipeline) + " has no blocks");
  }
  if (HasPipeline(pipeline)) return FailedPrecondition(Name(pipeline) + " is already open");
  auto opened = std::make_shared<Pipeline>(Pipeline{.options = options});
  const size_t slots =
      static_cast<size_t>(range.size()) * options.block_size * static_cast<size_t>(num_heads());
  opened->device.resize(slots * options.num_blocks);
  opened->host.resize(slots * options.num_host_blocks);
  // The memory of an earlier owner.
  for (size_t i = 0; i < opened->device.size(); ++i) {
    opened->device[i] = pipeline.value() * 0x9e3779b97f4a7c15ull + i;
  }
  const MutexLock lock(mutex_);
  pipelines_.emplace(pipeline, std::move(opened));
  return OkStatus();
}

void HashStage::ClosePipeline(PipelineId pipeline) {
  const MutexLock lock(mutex_);
  pipelines_.erase(pipeline);
}

std::shared_ptr<HashStage::Pipeline> HashStage::Find(PipelineId pipeline) const {
  const MutexLock lock(mutex_);
  const auto found = pipelines_.find(pipeline);
  return found == pipelines_.end() ? nullptr : found->second;
}

int HashStage::num_pipelines() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(pipelines_.size());
}

void HashStage::ReturnBlocks(PipelineId id, std::span<const BlockIndex> blocks) {
  const auto found = Find(id);
  if (!found) return;
  Pipeline& pipeline = *found;
  const LayerRange layers = pipeline.options.layers;
  const auto slots = static_cast<size_t>(pipeline.options.block_size) * num_heads();
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    for (BlockIndex block : blocks) {
      std::fill_n(pipeline.device.begin() + SlotIndex(pipeline, layer, block, 0), slots, 0);
    }
  }
}

size_t HashStage::SlotIndex(const Pipeline& pipeline, int layer, BlockIndex block,
                            int offset) const {
  const StagePipeline& o = pipeline.options;
  const size_t row = static_cast<size_t>(layer - o.layers.begin) * o.num_blocks + block;
  return (row * o.block_size + offset) * num_heads();
}

void HashStage::CopyBlock(const Pipeline& pipeline, std::vector<uint64_t>& to, int to_blocks,
                          BlockIndex to_block, const std::vector<uint64_t>& from, int from_blocks,
                          BlockIndex from_block) const {
  const size_t size = static_cast<size_t>(pipeline.options.block_size) * num_heads();
  for (size_t layer = 0; layer < static_cast<size_t>(pipeline.options.layers.size()); ++layer) {
    std::copy_n(from.begin() + (layer * from_blocks + from_block) * size, size,
                to.begin() + (layer * to_blocks + to_block) * size);
  }
}

StageLimits HashStage::limits() const {
  return {.vocab_size = model_.vocab_size,
          .max_model_len = kTokensPerSequenceMax,
          .max_batched_tokens = kTokensPerStepMax};
}

Status HashStage::Check(const StagePart& part) const {
  const auto found = Find(part.pipeline);
  if (!found) {
    ++refused_writes_;
    return NotFound(Name(part.pipeline) + " is not open");
  }
  const StagePipeline& o = found->options;
  const LayerRange layers = part.LayersOf(o);
  if (layers.size() < 1 || !o.layers.Contains(layers)) {
    return InvalidArgument("layers that " + Name(part.pipeline) + " does not have here");
  }
  const auto tokens = static_cast<size_t>(part.num_tokens());
  if (!part.TokensIn(o) && part.input.size() != tokens * row_bytes()) {
    return InvalidArgument("an activation of " + std::to_string(part.input.size()) + " bytes for " +
                           std::to_string(tokens) + " tokens");
  }
  return OkStatus();
}

void HashStage::MoveBlocks(Pipeline& pipeline, const StepPlan& plan) const {
  const StagePipeline& o = pipeline.options;
  for (const BlockCopy& c : plan.swap_out) {
    CopyBlock(pipeline, pipeline.host, o.num_host_blocks, c.to, pipeline.device, o.num_blocks,
              c.from);
  }
  for (const BlockCopy& c : plan.swap_in) {
    CopyBlock(pipeline, pipeline.device, o.num_blocks, c.to, pipeline.host, o.num_host_blocks,
              c.from);
  }
  for (const BlockCopy& c : plan.copies) {
    CopyBlock(pipeline, pipeline.device, o.num_blocks, c.to, pipeline.device, o.num_blocks, c.from);
  }
}

// As SamplingState does.
void HashStage::RecordOutputs(Pipeline& pipeline, const StagePart& part) {
  if (!part.layers) {
    for (const SequenceId id : part.plan->released) {
      pipeline.outputs.erase(id);
      pipeline.poolers.erase(id);
    }
    for (const SequenceStart& start : part.plan->started) {
      if (start.params->pools()) pipeline.poolers.try_emplace(start.id, start.params->pooling);
      if (start.params->grammar.empty()) continue;
      pipeline.outputs[start.id] = start.output ? *start.output : std::vector<TokenId>();
    }
  }
  for (const SequenceView& s : part.sequences) {
    const auto found = pipeline.outputs.find(s.id);
    if (found == pipeline.outputs.end()) continue;
    const int prompt_tokens = static_cast<int>(s.started->prompt->size());
    for (int p = std::max(s.start, prompt_tokens); p < s.end(); ++p) {
      const auto index = static_cast<size_t>(p - prompt_tokens);
      if (found->second.size() <= index) found->second.resize(index + 1);
      found->second[index] = s.tokens[static_cast<size_t>(p - s.start)];
    }
  }
}

Status HashStage::Begin(StagePart& part, Batch& batch) {
  part.result = {};
  part.result.id = part.plan->id;
  part.inner_activations.clear();
  MR_RETURN_IF_ERROR(Check(part));
  Pipeline& pipeline = *Find(part.pipeline);  // open until this thread closes it
  if (!part.layers) MoveBlocks(pipeline, *part.plan);
  if (pipeline.options.last) RecordOutputs(pipeline, part);
  batch.pipeline = &pipeline;
  batch.layers = part.LayersOf(pipeline.options);
  batch.part = &part;
  const auto tokens = static_cast<size_t>(part.num_tokens());
  batch.states.resize(tokens);
  batch.sums.resize(tokens);
  if (!part.TokensIn(pipeline.options)) {
    if (!part.input.empty()) {
      std::memcpy(batch.states.data(), part.input.data(), part.input.size());
    }
    return OkStatus();
  }
  size_t row = 0;
  for (const SequenceView& s : part.sequences) {
    for (int i = 0; i < s.num_tokens(); ++i) {
      batch.states[row++] = model_.Embed(s.tokens[static_cast<size_t>(i)], s.start + i);
    }
  }
  return OkStatus();
}

// Writes the layer's KV of the batch, and stores in `sums` the result of attention over this rank's
// heads for each row.
void HashStage::SumLayer(Batch& batch, int layer) const {
  Pipeline& pipeline = *batch.pipeline;
  const int block_size = pipeline.options.block_size;
  int first_row = 0;
  for (const SequenceView& s : batch.part->sequences) {
    uint64_t sum = 0;
    for (int p = 0; p < s.end(); ++p) {
      uint64_t* slot =
          &pipeline.device[SlotIndex(pipeline, layer, s.blocks[p / block_size], p % block_size)];
      const int row = p < s.start ? 0 : first_row + p - s.start;
      for (int h = heads_.first; h < heads_.second; ++h, ++slot) {
        if (p >= s.start) *slot = HashModel::KeyValue(layer, h, batch.states[row], p);
        sum += HashModel::Share(*slot, h, p);
      }
      if (p >= s.start) batch.sums[row] = sum;
    }
    first_row += s.num_tokens();
  }
}

void HashStage::KeepEntering(Batch& batch, int layer) {
  const std::vector<int>& wanted = batch.pipeline->options.cache_activations_at;
  if (layer == batch.layers.end || std::ranges::find(wanted, layer) == wanted.end()) return;
  const auto bytes = std::as_bytes(std::span(batch.states));
  batch.part->inner_activations.push_back({layer, {bytes.begin(), bytes.end()}});
}

// `states`: of the sequence's tokens.
SequenceResult HashStage::SampleOf(const Pipeline& pipeline, const SequenceView& sequence,
                                   std::span<const uint64_t> states) const {
  SequenceResult result;
  result.id = sequence.id;
  if (sequence.logits == LogitsWanted::kNone) return result;
  const SequenceStart& start = *sequence.started;
  const int prompt_tokens = static_cast<int>(start.prompt->size());
  const auto logprob = [](uint64_t state) { return -static_cast<float>(UnitDouble(Mix64(state))); };
  if (sequence.logits == LogitsWanted::kAll) {
    for (int p = sequence.start; p < sequence.end() && p + 1 < prompt_tokens; ++p) {
      result.prompt_logprobs.push_back(
          {{(*start.prompt)[p + 1], logprob(states[p - sequence.start]), 1}, {}});
    }
  }
  const int position = sequence.end();
  std::unique_ptr<TokenMatcher> matcher;
  std::span<const uint32_t> allowed;
  if (!start.params->grammar.empty()) {
    if (!pipeline.options.grammars) {
      result.error = FailedPrecondition("the output is constrained, and there is no vocabulary");
      return result;
    }
    const std::vector<TokenId>& output = pipeline.outputs.at(sequence.id);
    const auto generated = static_cast<size_t>(std::max(0, position - prompt_tokens));
    matcher = pipeline.options.grammars->MatcherOf(start.params->grammar);
    allowed = *matcher->Allowed(std::span(output).first(std::min(generated, output.size())));
  }
  result.token = model_.Sample(states.back(), position, position - prompt_tokens, *start.params,
                               start.seed, pipeline.options.eos_token_ids, allowed);
  if (start.params->logprobs) result.logprobs = {{*result.token, logprob(states.back()), 1}, {}};
  return result;
}

SequenceResult HashStage::PoolOf(Pipeline& pipeline, const SequenceView& sequence,
                                 std::span<const uint64_t> states) {
  SequenceResult result;
  result.id = sequence.id;
  if (sequence.logits == LogitsWanted::kNone) return result;
  Pooler& pooler = pipeline.poolers.at(sequence.id);
  const int prompt_tokens = static_cast<int>(sequence.started->prompt->size());
  for (int p = sequence.start; p < sequence.end(); ++p) {
    if (!pooler.Wants(p, prompt_tokens)) continue;
    pooler.Add(p, HashModel::Numbers(states[static_cast<size_t>(p - sequence.start)]));
  }
  if (sequence.end() < prompt_tokens) return result;
  auto vector = pooler.Vector(prompt_tokens);
  if (vector.ok()) {
    result.pooled = std::move(*vector);
  } else {
    result.error = vector.status();
  }
  return result;
}

void HashStage::End(Batch& batch) const {
  StagePart& part = *batch.part;
  if (!part.TokensOut(batch.pipeline->options)) {
    const auto bytes = std::as_bytes(std::span(batch.states));
    part.output.assign(bytes.begin(), bytes.end());
    return;
  }
  std::span<const uint64_t> states = batch.states;
  for (const SequenceView& s : part.sequences) {
    const auto its = states.first(s.tokens.size());
    part.result.sequences.push_back(s.started->params->pools() ? PoolOf(*batch.pipeline, s, its)
                                                               : SampleOf(*batch.pipeline, s, its));
    states = states.subspan(s.tokens.size());
  }
}

Status HashStage::Run(std::span<StagePart> parts) {
  MR_CHECK(num_heads() == model_.heads) << "a rank cannot run alone";
  HashStage* const self = this;
  return RunRanks({&self, 1}, {&parts, 1});
}

Status HashStage::RunRanks(std::span<HashStage* const> ranks,
                           std::span<const std::span<StagePart>> parts) {
  MR_CHECK(ranks.size() == parts.size());
  const size_t count = parts.front().size();
  std::vector<std::vector<Batch>> batches(ranks.size(), std::vector<Batch>(count));
  for (size_t r = 0; r < ranks.size(); ++r) {
    MR_CHECK(parts[r].size() == count) << "ranks run different batches";
    for (size_t i = 0; i < count; ++i) {
      MR_CHECK(parts[r][i].pipeline == parts[0][i].pipeline) << "ranks run different batches";
      const Status begun = ranks[r]->Begin(parts[r][i], batches[r][i]);
      if (begun.ok()) continue;
      for (const std::span<StagePart>& of_rank : parts) of_rank[i].result.error = begun;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (parts[0][i].result.error.ok()) continue;
    for (auto& of_rank : batches) of_rank[i].pipeline = nullptr;
  }
  const LayerRange layers = ranks.front()->layers_;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    for (size_t i = 0; i < count; ++i) {
      if (batches[0][i].pipeline == nullptr || !batches[0][i].layers.Contains(layer)) continue;
      for (size_t r = 0; r < ranks.size(); ++r) ranks[r]->SumLayer(batches[r][i], layer);
      for (size_t row = 0; row < batches[0][i].states.size(); ++row) {
        uint64_t sum = 0;
        for (auto& of_rank : batches) sum += of_rank[i].sums[row];
        for (auto& of_rank : batches) {
          uint64_t& state = of_rank[i].states[row];
          state = HashModel::NextState(layer, state, sum);
        }
      }
      for (auto& of_rank : batches) KeepEntering(of_rank[i], layer + 1);
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (Batch& batch : batches[r]) {
      if (batch.pipeline != nullptr) ranks[r]->End(batch);
    }
  }
  return OkStatus();
}

size_t HashStage::KvBytes(const KvBox& box) const {
  return sizeof(uint64_t) * static_cast<size_t>(box.layers.size()) *
         static_cast<size_t>(box.end_head - box.first_head) *
         static_cast<size_t>(box.end_token - box.first_token);
}

namespace {

Status CheckTable(const StagePipeline& pipeline, const KvBox& box,
                  std::span<const BlockIndex> blocks) {
  if (std::ssize(blocks) * pipeline.block_size < box.end_token) {
    return InvalidArgument("a table of " + std::to_string(blocks.size()) + " blocks for " +
                           std::to_string(box.end_token) + " tokens");
  }
  for (const BlockIndex block : blocks) {
    if (block >= 0 && block < pipeline.num_blocks) continue;
    return InvalidArgument("block " + std::to_string(block) + " does not exist");
  }
  return OkStatus();
}

// Calls `move(layer, head, token, key offset, value offset)` with the offsets of key and value in
// the dense form: [layer][K, V][head][token].
template <typename Move>
void ForEachSlot(const KvBox& box, Move move) {
  const size_t heads = box.end_head - box.first_head;
  const size_t tokens = box.end_token - box.first_token;
  for (int layer = box.layers.begin; layer < box.layers.end; ++layer) {
    const size_t of_layer = static_cast<size_t>(layer - box.layers.begin) * 2 * heads * tokens;
    for (size_t h = 0; h < heads; ++h) {
      for (size_t t = 0; t < tokens; ++t) {
        const size_t key = of_layer + h * tokens + t;
        move(layer, box.first_head + static_cast<int>(h), box.first_token + static_cast<int>(t),
             key * sizeof(uint32_t), (key + heads * tokens) * sizeof(uint32_t));
      }
    }
  }
}

}  // namespace

Status HashStage::ReadKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                         std::span<std::byte> out) const {
  MR_CHECK(out.size() == KvBytes(box));
  const auto found = Find(pipeline);
  if (!found) return NotFound(Name(pipeline) + " is not open");
  const Pipeline& from = *found;
  MR_RETURN_IF_ERROR(CheckTable(from.options, box, blocks));
  const int block_size = from.options.block_size;
  ForEachSlot(box, [&](int layer, int head, int token, size_t key, size_t value) {
    const size_t slot = SlotIndex(from, layer, blocks[token / block_size], token % block_size);
    const uint64_t both = from.device[slot + (head - heads_.first)];
    const uint32_t halves[2] = {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
    std::memcpy(&out[key], &halves[0], sizeof(uint32_t));
    std::memcpy(&out[value], &halves[1], sizeof(uint32_t));
  });
  return OkStatus();
}

Status HashStage::WriteKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                          std::span<const std::byte> in) {
  MR_CHECK(in.size() == KvBytes(box));
  const auto found = Find(pipeline);
  if (!found) {
    ++refused_writes_;
    return NotFound(Name(pipeline) + " is not open");
  }
  Pipeline& to = *found;
  MR_RETURN_IF_ERROR(CheckTable(to.options, box, blocks));
  const int block_size = to.options.block_size;
  ForEachSlot(box, [&](int layer, int head, int token, size_t key, size_t value) {
    uint32_t halves[2];
    std::memcpy(&halves[0], &in[key], sizeof(uint32_t));
    std::memcpy(&halves[1], &in[value], sizeof(uint32_t));
    const size_t slot = SlotIndex(to, layer, blocks[token / block_size], token % block_size);
    to.device[slot + (head - heads_.first)] = halves[0] | static_cast<uint64_t>(halves[1]) << 32;
  });
  return OkStatus();
}

}  // namespace millrace::stage
