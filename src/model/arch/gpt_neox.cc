// GPT-NeoX (Black et al. 2022) and Pythia: attention and feed-forward side by side on the same
// input (or one after the other), rotation of a part of each head, q, k and v of each head stored
// together.
#include <fmt/format.h>

#include <cmath>

#include "model/architecture.h"

namespace millrace::model {
namespace {

using tensor::Rows;

struct NeoxBlock {
  Norm attention_norm, mlp_norm;
  Attention attention;
  Mlp mlp;
};

class GptNeoXDecoder : public Decoder {
 public:
  explicit GptNeoXDecoder(ConfigReader& config) {
    ModelSpec& s = dims_.spec;
    s = ReadCommon(config, {.grouped = false});
    dims_.mlp_columns = s.intermediate_size;
    dims_.rope =
        ReadRope(config, s.head_dim, s.max_position,
                 {.theta = "rotary_emb_base", .partial = "rotary_pct", .default_partial = 0.25});
    epsilon_ = config.Number("layer_norm_eps", 0, 1, 1e-5);
    activation_ = config.Activation("hidden_act", "gelu");
    parallel_ = config.Bool("use_parallel_residual", true);
    attention_bias_ = config.Bool("attention_bias", true);
    tied_ = config.Bool("tie_word_embeddings", false);
  }

  void Declare(LayerRange layers, WeightPlan& plan) override {
    const ModelSpec& s = dims_.spec;
    first_ = layers.begin;
    blocks_.resize(static_cast<size_t>(layers.size()));
    const std::string at = plan.Prefix({"gpt_neox.", ""}, "embed_in.weight");
    if (layers.Contains(0))
      plan.Add(embedding_, at + "embed_in.weight", s.vocab_size, s.hidden_size);
    for (int i = layers.begin; i < layers.end; ++i) {
      DeclareBlock(fmt::format("{}layers.{}.", at, i), blocks_[static_cast<size_t>(i - first_)],
                   plan);
    }
    if (!HasHead(layers, plan)) return;
    plan.Add(norm_, at + "final_layer_norm", s.hidden_size, NormKind::kLayer, epsilon_);
    dims_.spec.generates = plan.AddHead(head_, {.tied = tied_,
                                                .base = IsBase(at),
                                                .embedding = at + "embed_in",
                                                .names = {"embed_out", "lm_head"},
                                                .rows = s.vocab_size,
                                                .columns = s.hidden_size});
  }

  void Embed(Pass& pass) override { pass.device.Embed(pass.at, *embedding_.rows, pass.hidden); }

  void Layer(int index, Pass& pass) override {
    const NeoxBlock& block = blocks_[static_cast<size_t>(index - first_)];
    const int hidden = dims_.spec.hidden_size;
    Rows normed = pass.Normed(hidden);
    Rows attended = block.attention.Attend(pass, {pass.hidden, &block.attention_norm, normed});
    // The qkv buffer is free after attention. The feed-forward input goes there, so that it can be
    // taken before (parallel) or after (sequential) the attention output is added.
    Rows inputs = pass.work.qkv->View(pass.rows(), hidden);
    ForRowChunks(pass, [&](int first, int count) {
      Rows h = pass.hidden.Slice(first, count), x = inputs.Slice(first, count);
      if (parallel_) block.mlp_norm.Run(pass.device, h, x);
      block.attention.out.Run(pass.device, attended.Slice(first, count), h, h);
      block.mlp.Run(pass, parallel_ ? Input{.rows = x} : Input{h, &block.mlp_norm, x}, h, h);
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
  void DeclareBlock(const std::string& at, NeoxBlock& block, WeightPlan& plan) {
    const ModelSpec& s = dims_.spec;
    Attention& a = block.attention;
    a.heads = a.kv_heads = Heads(plan);
    a.head_dim = s.head_dim;
    a.spec.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    plan.Add(block.attention_norm, at + "input_layernorm", s.hidden_size, NormKind::kLayer,
             epsilon_);
    plan.Add(a.qkv, {.parts = {{at + "attention.query_key_value", 3 * s.hidden_size, s.num_heads}},
                     .k = s.hidden_size,
                     .bias = attention_bias_,
                     .interleaved_head_dim = s.head_dim});
    plan.Add(a.out, {.parts = {{at + "attention.dense", s.hidden_size}},
                     .k = s.hidden_size,
                     .bias = attention_bias_,
                     .row_parallel = true});
    plan.Add(block.mlp_norm, at + "post_attention_layernorm", s.hidden_size, NormKind::kLayer,
             epsilon_);
    const int inner = s.intermediate_size;
    block.mlp.columns = MlpColumns(plan);
    block.mlp.activation = activation_;
    plan.Add(
        block.mlp.up,
        {.parts = {{at + "mlp.dense_h_to_4h", inner, inner}}, .k = s.hidden_size, .bias = true});
    plan.Add(block.mlp.down, {.parts = {{at + "mlp.dense_4h_to_h", s.hidden_size}},
                              .k = inner,
                              .bias = true,
                              .row_parallel = true});
  }

  double epsilon_ = 1e-5;
  tensor::Activation activation_ = tensor::Activation::kGelu;
  bool parallel_ = true, attention_bias_ = true, tied_ = false;
  int first_ = 0;
  Table embedding_;
  std::vector<NeoxBlock> blocks_;
  Norm norm_;
  Linear head_;
};

}  // namespace

std::unique_ptr<Decoder> MakeGptNeoX(ConfigReader& config) {
  return std::make_unique<GptNeoXDecoder>(config);
}

}  // namespace millrace::model
