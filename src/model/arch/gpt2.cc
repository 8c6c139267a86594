// GPT-2 (Radford et al. 2019): learned positions, LayerNorm before each part, one fused q, k, v
// product, weights stored [in, out] (Conv1D).
#include <fmt/format.h>

#include <cmath>

#include "model/architecture.h"

namespace millrace::model {
namespace {

using tensor::Rows;

struct Gpt2Block {
  Norm attention_norm, mlp_norm;
  Attention attention;
  Mlp mlp;
};

class Gpt2Decoder : public Decoder {
 public:
  explicit Gpt2Decoder(ConfigReader& config) {
    dims_.spec = ReadCommon(config, {.layers = "n_layer",
                                     .hidden = "n_embd",
                                     .heads = "n_head",
                                     .intermediate = "n_inner",
                                     .intermediate_may_lack = true,
                                     .positions = "n_positions",
                                     .grouped = false});
    dims_.mlp_columns = dims_.spec.intermediate_size;
    epsilon_ = config.Number("layer_norm_epsilon", 0, 1, 1e-5);
    activation_ = config.Activation("activation_function", "gelu_new");
    tied_ = config.Bool("tie_word_embeddings", true);
    scaled_ = config.Bool("scale_attn_weights", true);
    scaled_by_layer_ = config.Bool("scale_attn_by_inverse_layer_idx", false);
    if (config.Bool("add_cross_attention", false)) {
      config.Fail("add_cross_attention is not supported", StatusCode::kUnimplemented);
    }
  }

  void Declare(LayerRange layers, WeightPlan& plan) override {
    const ModelSpec& s = dims_.spec;
    first_ = layers.begin;
    blocks_.resize(static_cast<size_t>(layers.size()));
    const std::string at = plan.Prefix({"transformer.", ""}, "wte.weight");
    if (layers.Contains(0)) {
      plan.Add(embedding_, at + "wte.weight", s.vocab_size, s.hidden_size);
      plan.Add(positions_, at + "wpe.weight", s.max_position, s.hidden_size);
    }
    for (int i = layers.begin; i < layers.end; ++i) {
      DeclareBlock(fmt::format("{}h.{}.", at, i), i, blocks_[static_cast<size_t>(i - first_)],
                   plan);
    }
    if (!HasHead(layers, plan)) return;
    plan.Add(norm_, at + "ln_f", s.hidden_size, NormKind::kLayer, epsilon_);
    dims_.spec.generates = plan.AddHead(head_, {.tied = tied_,
                                                .base = IsBase(at),
                                                .embedding = at + "wte",
                                                .names = {"lm_head"},
                                                .rows = s.vocab_size,
                                                .columns = s.hidden_size});
  }

  void Embed(Pass& pass) override {
    pass.device.Embed(pass.at, *embedding_.rows, pass.hidden);
    pass.device.AddPositions(pass.at, *positions_.rows, pass.hidden);
  }

  void Layer(int index, Pass& pass) override {
    const Gpt2Block& block = blocks_[static_cast<size_t>(index - first_)];
    Rows normed = pass.Normed(dims_.spec.hidden_size);
    Rows attended = block.attention.Attend(pass, {pass.hidden, &block.attention_norm, normed});
    block.attention.out.Run(pass.device, attended, pass.hidden, pass.hidden);
    ForRowChunks(pass, [&](int first, int count) {
      Rows h = pass.hidden.Slice(first, count);
      block.mlp.Run(pass, {h, &block.mlp_norm, normed.Slice(first, count)}, h, h);
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
  void DeclareBlock(const std::string& at, int index, Gpt2Block& block, WeightPlan& plan) {
    const ModelSpec& s = dims_.spec;
    Attention& a = block.attention;
    a.heads = a.kv_heads = Heads(plan);
    a.head_dim = s.head_dim;
    a.rotary = false;
    a.spec.scale = (scaled_ ? 1.0f / std::sqrt(static_cast<float>(s.head_dim)) : 1.0f) /
                   (scaled_by_layer_ ? static_cast<float>(index + 1) : 1.0f);
    plan.Add(block.attention_norm, at + "ln_1", s.hidden_size, NormKind::kLayer, epsilon_);
    AddConv(plan, a.qkv, {at + "attn.c_attn", 3 * s.hidden_size, s.num_heads, 3}, s.hidden_size);
    AddConv(plan, a.out, {at + "attn.c_proj", s.hidden_size}, s.hidden_size, true);
    plan.Add(block.mlp_norm, at + "ln_2", s.hidden_size, NormKind::kLayer, epsilon_);
    const int inner = s.intermediate_size;
    block.mlp.columns = MlpColumns(plan);
    block.mlp.activation = activation_;
    AddConv(plan, block.mlp.up, {at + "mlp.c_fc", inner, inner}, s.hidden_size);
    AddConv(plan, block.mlp.down, {at + "mlp.c_proj", s.hidden_size}, inner, true);
  }

  static void AddConv(WeightPlan& plan, Linear& target, LinearNeed::Part part, int k,
                      bool row_parallel = false) {
    plan.Add(target, {.parts = {std::move(part)},
                      .k = k,
                      .bias = true,
                      .transposed = true,
                      .row_parallel = row_parallel});
  }

  double epsilon_ = 1e-5;
  tensor::Activation activation_ = tensor::Activation::kGeluTanh;
  bool tied_ = true, scaled_ = true, scaled_by_layer_ = false;
  int first_ = 0;
  Table embedding_, positions_;
  std::vector<Gpt2Block> blocks_;
  Norm norm_;
  Linear head_;
};

}  // namespace

std::unique_ptr<Decoder> MakeGpt2(ConfigReader& config) {
  return std::make_unique<Gpt2Decoder>(config);
}

}  // namespace millrace::model
