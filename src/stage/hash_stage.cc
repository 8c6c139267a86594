#include "stage/hash_stage.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"

namespace millrace::stage {
namespace {

constexpr int kTokensPerSequenceMax = 1 << 20;

std::string Name(PipelineId pipeline) { return "pipeline " + std::to_string(pipeline.value()); }

Status CheckCopies(const std::vector<BlockCopy>& copies, int from_blocks, int to_blocks) {
  for (const BlockCopy& copy : copies) {
    if (copy.from < 0 || copy.from >= from_blocks || copy.to < 0 || copy.to >= to_blocks) {
      return InvalidArgument("a copy from block " + std::to_string(copy.from) + " to block " +
                             std::to_string(copy.to) + " is outside the pools");
    }
  }
  return OkStatus();
}

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
  const auto [it, fresh] = pipelines_.try_emplace(pipeline);
  if (!fresh) return FailedPrecondition(Name(pipeline) + " is already open");
  it->second.options = options;
  const size_t slots =
      static_cast<size_t>(range.size()) * options.block_size * static_cast<size_t>(num_heads());
  it->second.device.resize(slots * options.num_blocks);
  it->second.host.resize(slots * options.num_host_blocks);
  // The memory of an earlier owner.
  for (size_t i = 0; i < it->second.device.size(); ++i) {
    it->second.device[i] = pipeline.value() * 0x9e3779b97f4a7c15ull + i;
  }
  return OkStatus();
}

void HashStage::ClosePipeline(PipelineId pipeline) { pipelines_.erase(pipeline); }

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

Status HashStage::Check(const StagePart& part) const {
  const auto found = pipelines_.find(part.pipeline);
  if (found == pipelines_.end()) {
    ++refused_writes_;
    return NotFound(Name(part.pipeline) + " is not open");
  }
  const StagePipeline& o = found->second.options;
  const StepPlan& plan = *part.plan;
  MR_RETURN_IF_ERROR(CheckCopies(plan.swap_out, o.num_blocks, o.num_host_blocks));
  MR_RETURN_IF_ERROR(CheckCopies(plan.swap_in, o.num_host_blocks, o.num_blocks));
  MR_RETURN_IF_ERROR(CheckCopies(plan.copies, o.num_blocks, o.num_blocks));
  for (BlockIndex block : plan.blocks) {
    if (block < 0 || block >= o.num_blocks) {
      return InvalidArgument("block " + std::to_string(block) + " does not exist");
    }
  }
  size_t tokens = 0;
  for (const SequenceStep& step : plan.sequences) {
    if (step.num_tokens < 0 || step.start < 0 || step.start > kTokensPerSequenceMax ||
        step.first_token != static_cast<int64_t>(tokens) || step.keep_blocks < 0 ||
        step.first_new_block < 0 || step.num_new_blocks < 0 ||
        step.first_new_block + static_cast<size_t>(step.num_new_blocks) > plan.blocks.size()) {
      return InvalidArgument("sequence " + std::to_string(step.id.value()) + ": a malformed step");
    }
    tokens += static_cast<size_t>(step.num_tokens);
  }
  if (tokens != plan.tokens.size()) return InvalidArgument("tokens and sequences do not match");
  const LayerRange layers = part.LayersOf(o);
  if (layers.size() < 1 || !o.layers.Contains(layers)) {
    return InvalidArgument("layers that " + Name(part.pipeline) + " does not have here");
  }
  if (!part.TokensIn(o) && part.input.size() != tokens * row_bytes()) {
    return InvalidArgument("an activation of " + std::to_string(part.input.size()) + " bytes for " +
                           std::to_string(tokens) + " tokens");
  }
  return OkStatus();
}

Status HashStage::ApplyTables(Pipeline& pipeline, const StepPlan& plan) {
  for (SequenceId id : plan.released) pipeline.sequences.erase(id);
  for (const SequenceStart& start : plan.started) {
    if (!start.prompt || !start.params) return InvalidArgument("a sequence without a prompt");
    if (!pipeline.sequences.try_emplace(start.id, Sequence{start, {}}).second) {
      return InvalidArgument("sequence " + std::to_string(start.id.value()) + " started twice");
    }
  }
  for (const SequenceStep& step : plan.sequences) {
    const auto found = pipeline.sequences.find(step.id);
    if (found == pipeline.sequences.end()) {
      return InvalidArgument("sequence " + std::to_string(step.id.value()) + " was never started");
    }
    std::vector<BlockIndex>& table = found->second.table;
    if (step.keep_blocks > std::ssize(table)) {
      return InvalidArgument("sequence " + std::to_string(step.id.value()) +
                             " keeps blocks it does not have");
    }
    table.resize(step.keep_blocks);
    const auto fresh = plan.NewBlocksOf(step);
    table.insert(table.end(), fresh.begin(), fresh.end());
    if (step.start + step.num_tokens > std::ssize(table) * pipeline.options.block_size) {
      return InvalidArgument("sequence " + std::to_string(step.id.value()) +
                             " is beyond its blocks");
    }
  }
  return OkStatus();
}

Status HashStage::Begin(StagePart& part, Batch& batch) {
  part.result = {};
  part.result.id = part.plan->id;
  part.inner_activations.clear();
  MR_RETURN_IF_ERROR(Check(part));
  Pipeline& pipeline = pipelines_.at(part.pipeline);
  const StepPlan& plan = *part.plan;
  MR_RETURN_IF_ERROR(ApplyTables(pipeline, plan));
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
  batch.pipeline = &pipeline;
  batch.layers = part.LayersOf(o);
  batch.part = &part;
  batch.states.resize(plan.tokens.size());
  batch.sums.resize(plan.tokens.size());
  if (!part.TokensIn(o)) {
    if (!part.input.empty()) {
      std::memcpy(batch.states.data(), part.input.data(), part.input.size());
    }
    return OkStatus();
  }
  for (const SequenceStep& step : plan.sequences) {
    for (int i = 0; i < step.num_tokens; ++i) {
      const int row = step.first_token + i;
      batch.states[row] = model_.Embed(plan.tokens[row], step.start + i);
    }
  }
  return OkStatus();
}

// Writes the layer's KV of the batch, and stores in `sums` the result of attention over this rank's
// heads for each row.
void HashStage::SumLayer(Batch& batch, int layer) const {
  Pipeline& pipeline = *batch.pipeline;
  const int block_size = pipeline.options.block_size;
  for (const SequenceStep& step : batch.part->plan->sequences) {
    const std::vector<BlockIndex>& table = pipeline.sequences.at(step.id).table;
    uint64_t sum = 0;
    const int end = step.start + step.num_tokens;
    for (int p = 0; p < end; ++p) {
      uint64_t* slot =
          &pipeline.device[SlotIndex(pipeline, layer, table[p / block_size], p % block_size)];
      const int row = p < step.start ? 0 : step.first_token + p - step.start;
      for (int h = heads_.first; h < heads_.second; ++h, ++slot) {
        if (p >= step.start) *slot = HashModel::KeyValue(layer, h, batch.states[row], p);
        sum += HashModel::Share(*slot, h, p);
      }
      if (p >= step.start) batch.sums[row] = sum;
    }
  }
}

void HashStage::KeepEntering(Batch& batch, int layer) {
  const std::vector<int>& wanted = batch.pipeline->options.cache_activations_at;
  if (layer == batch.layers.end || std::ranges::find(wanted, layer) == wanted.end()) return;
  const auto bytes = std::as_bytes(std::span(batch.states));
  batch.part->inner_activations.push_back({layer, {bytes.begin(), bytes.end()}});
}

SequenceResult HashStage::SampleOf(const Batch& batch, const SequenceStep& step) const {
  SequenceResult result;
  result.id = step.id;
  if (step.logits == LogitsWanted::kNone) return result;
  const SequenceStart& start = batch.pipeline->sequences.at(step.id).start;
  const int prompt_tokens = static_cast<int>(start.prompt->size());
  const auto logprob = [](uint64_t state) { return -static_cast<float>(UnitDouble(Mix64(state))); };
  if (step.logits == LogitsWanted::kAll) {
    for (int i = 0; i < step.num_tokens && step.start + i + 1 < prompt_tokens; ++i) {
      const TokenId next = (*start.prompt)[step.start + i + 1];
      result.prompt_logprobs.push_back(
          {{next, logprob(batch.states[step.first_token + i]), 1}, {}});
    }
  }
  const uint64_t state = batch.states[step.first_token + step.num_tokens - 1];
  const int position = step.start + step.num_tokens;
  result.token = model_.Sample(state, position, position - prompt_tokens, *start.params, start.seed,
                               batch.pipeline->options.eos_token_ids);
  if (start.params->logprobs) result.logprobs = {{*result.token, logprob(state), 1}, {}};
  return result;
}

void HashStage::End(Batch& batch) const {
  StagePart& part = *batch.part;
  if (!part.TokensOut(batch.pipeline->options)) {
    const auto bytes = std::as_bytes(std::span(batch.states));
    part.output.assign(bytes.begin(), bytes.end());
    return;
  }
  for (const SequenceStep& step : part.plan->sequences) {
    part.result.sequences.push_back(SampleOf(batch, step));
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
  const auto found = pipelines_.find(pipeline);
  if (found == pipelines_.end()) return NotFound(Name(pipeline) + " is not open");
  const Pipeline& from = found->second;
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
  const auto found = pipelines_.find(pipeline);
  if (found == pipelines_.end()) {
    ++refused_writes_;
    return NotFound(Name(pipeline) + " is not open");
  }
  Pipeline& to = found->second;
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
