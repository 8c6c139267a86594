#include "model/arch/gated_decoder.h"

#include <fmt/format.h>

namespace millrace::model {
namespace {

using tensor::Rows;

struct Block {
  Norm attention_norm, mlp_norm;
  Attention attention;
  GatedMlp mlp;
};

class GatedDecoder : public Decoder {
 public:
  GatedDecoder(Dims dims, GatedShape shape) : shape_(std::move(shape)) { dims_ = std::move(dims); }

  void Declare(LayerRange layers, WeightPlan& plan) override {
    first_ = layers.begin;
    blocks_.resize(static_cast<size_t>(layers.size()));
    const ModelSpec& s = dims_.spec;
    const std::string at = plan.Prefix(
        {"model.", "", "language_model.model.", "model.language_model."}, "embed_tokens.weight");
    if (layers.Contains(0))
      plan.Add(embedding_, at + "embed_tokens.weight", s.vocab_size, s.hidden_size);
    for (int i = layers.begin; i < layers.end; ++i) {
      DeclareBlock(fmt::format("{}layers.{}.", at, i), i, blocks_[static_cast<size_t>(i - first_)],
                   plan);
    }
    if (!HasHead(layers, plan)) return;
    plan.Add(norm_, at + "norm", s.hidden_size, NormKind::kRms, shape_.epsilon);
    dims_.spec.generates = plan.AddHead(head_, {.tied = shape_.tied,
                                                .base = IsBase(at),
                                                .embedding = at + "embed_tokens",
                                                .names = {"lm_head", "language_model.lm_head"},
                                                .rows = s.vocab_size,
                                                .columns = s.hidden_size});
  }

  void Embed(Pass& pass) override { pass.device.Embed(pass.at, *embedding_.rows, pass.hidden); }

  void Layer(int index, Pass& pass) override {
    const Block& block = blocks_[static_cast<size_t>(index - first_)];
    Rows normed = pass.Normed(dims_.spec.hidden_size);
    Rows attended = block.attention.Attend(pass, {pass.hidden, &block.attention_norm, normed});
    block.attention.out.Run(pass.device, attended, pass.hidden, pass.hidden);
    ForRowChunks(pass, [&](int first, int count) {
      Rows h = pass.hidden.Slice(first, count);
      block.mlp.Run(pass, block.mlp_norm, h, normed.Slice(first, count), h, h);
    });
  }

  void Head(tensor::Device& device, Rows rows, Rows scratch, Rows logits) override {
    head_.Run(device, Input{rows, &norm_, scratch}, logits);
  }
  Rows HeadInput(tensor::Device& device, Rows rows, Rows scratch) override {
    norm_.Run(device, rows, scratch);
    return scratch;
  }

 private:
  void DeclareBlock(const std::string& at, int index, Block& block, WeightPlan& plan) {
    const ModelSpec& s = dims_.spec;
    const std::string self = at + "self_attn.";
    Attention& a = block.attention;
    a.heads = Heads(plan);
    a.kv_heads = KvHeads(plan);
    a.head_dim = s.head_dim;
    a.spec = {1.0f / std::sqrt(static_cast<float>(s.head_dim)),
              shape_.windows[static_cast<size_t>(index)]};
    plan.Add(block.attention_norm, at + "input_layernorm", s.hidden_size, NormKind::kRms,
             shape_.epsilon);
    const int q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
    plan.Add(a.qkv, {.parts = {{self + "q_proj", q, s.num_heads},
                               {self + "k_proj", kv, s.num_kv_heads},
                               {self + "v_proj", kv, s.num_kv_heads}},
                     .k = s.hidden_size,
                     .bias = shape_.qkv_bias});
    if (shape_.head_norms) {
      a.q_norm = std::make_unique<Norm>();
      a.k_norm = std::make_unique<Norm>();
      plan.Add(*a.q_norm, self + "q_norm", s.head_dim, NormKind::kRms, shape_.epsilon);
      plan.Add(*a.k_norm, self + "k_norm", s.head_dim, NormKind::kRms, shape_.epsilon);
    }
    plan.Add(a.out, {.parts = {{self + "o_proj", s.hidden_size}},
                     .k = q,
                     .bias = shape_.out_bias,
                     .row_parallel = true});
    plan.Add(block.mlp_norm, at + "post_attention_layernorm", s.hidden_size, NormKind::kRms,
             shape_.epsilon);
    const int inner = s.intermediate_size;
    block.mlp.columns = MlpColumns(plan);
    block.mlp.activation = shape_.activation;
    plan.Add(block.mlp.gate_up,
             {.parts = {{at + "mlp.gate_proj", inner, inner}, {at + "mlp.up_proj", inner, inner}},
              .k = s.hidden_size,
              .bias = shape_.mlp_bias,
              .gated = true});
    plan.Add(block.mlp.down, {.parts = {{at + "mlp.down_proj", s.hidden_size}},
                              .k = inner,
                              .bias = shape_.mlp_bias,
                              .row_parallel = true});
  }

  const GatedShape shape_;
  int first_ = 0;
  Table embedding_;
  std::vector<Block> blocks_;
  Norm norm_;
  Linear head_;
};

}  // namespace

Dims ReadGatedDims(ConfigReader& config) {
  Dims dims;
  dims.spec = ReadCommon(config);
  dims.mlp_columns = 2 * dims.spec.intermediate_size;
  dims.rope = ReadRope(config, dims.spec.head_dim, dims.spec.max_position);
  return dims;
}

GatedShape ReadGatedShape(ConfigReader& config, const Dims& dims) {
  GatedShape shape;
  shape.tied = config.Bool("tie_word_embeddings", false);
  shape.epsilon = config.Number("rms_norm_eps", 0, 1, 1e-6);
  shape.activation = config.Activation("hidden_act", "silu");
  shape.windows.assign(static_cast<size_t>(dims.spec.num_layers), 0);
  return shape;
}

std::vector<int> ReadQwenWindows(ConfigReader& config, ModelSpec& spec) {
  std::vector<int> windows(static_cast<size_t>(spec.num_layers), 0);
  const bool use = config.Bool("use_sliding_window", false);
  if (!use || !config.Has("sliding_window")) return windows;
  const int window = config.Int("sliding_window", 1, kPositionsMax);
  const int first = config.Int("max_window_layers", 0, kLayersMax, 28);
  const std::vector<std::string> types = config.Strings("layer_types");
  if (!types.empty() && types.size() != windows.size()) {
    config.Fail(
        fmt::format("layer_types has {} entries for {} layers", types.size(), windows.size()));
    return windows;
  }
  bool all = true;
  for (size_t i = 0; i < windows.size(); ++i) {
    const bool slides =
        types.empty() ? static_cast<int>(i) >= first : types[i] == "sliding_attention";
    if (!types.empty() && !slides && types[i] != "full_attention") {
      config.Fail(
          fmt::format("layer_types: full_attention and sliding_attention are supported, not the "
                      "type of layer {}",
                      i),
          StatusCode::kUnimplemented);
    }
    windows[i] = slides ? window : 0;
    all = all && slides;
  }
  if (all) spec.sliding_window = window;
  return windows;
}

std::unique_ptr<Decoder> NewGatedDecoder(Dims dims, GatedShape shape) {
  return std::make_unique<GatedDecoder>(std::move(dims), std::move(shape));
}

}  // namespace millrace::model
