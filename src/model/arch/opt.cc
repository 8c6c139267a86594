// OPT (Zhang et al. 2022), every size. Learned positions start at row 2. LayerNorm comes before
// each part. In opt-350m it comes after, and the embeddings are narrower than the layers and are
// projected in and out.
#include <fmt/format.h>

#include <cmath>

#include "model/architecture.h"

namespace millrace::model {
namespace {

using tensor::Rows;

constexpr int kPositionOffset = 2;

struct OptBlock {
  Norm attention_norm, mlp_norm;
  Attention attention;
  Mlp mlp;
};

class OptDecoder : public Decoder {
 public:
  explicit OptDecoder(ConfigReader& config) {
    ModelSpec& s = dims_.spec;
    s = ReadCommon(config, {.intermediate = "ffn_dim", .grouped = false});
    dims_.mlp_columns = s.intermediate_size;
    s.embedding_size = config.Int("word_embed_proj_dim", 1, kHiddenSizeMax, s.hidden_size);
    norm_before_ = config.Bool("do_layer_norm_before", true);
    final_norm_ = norm_before_ && !config.Bool("_remove_final_layer_norm", false);
    bias_ = config.Bool("enable_bias", true);
    affine_ = config.Bool("layer_norm_elementwise_affine", true);
    tied_ = config.Bool("tie_word_embeddings", true);
    activation_ = config.Activation("activation_function", "relu");
  }

  void Declare(LayerRange layers, WeightPlan& plan) override {
    const ModelSpec& s = dims_.spec;
    const int narrow = s.embedding_size;
    first_ = layers.begin;
    blocks_.resize(static_cast<size_t>(layers.size()));
    const std::string at = plan.Prefix({"model.decoder.", "decoder.", ""}, "embed_tokens.weight");
    if (layers.Contains(0)) {
      plan.Add(embedding_, at + "embed_tokens.weight", s.vocab_size, narrow);
      plan.Add(positions_, at + "embed_positions.weight", s.max_position + kPositionOffset,
               s.hidden_size, kPositionOffset);
      if (Projects())
        plan.Add(project_in_, {.parts = {{at + "project_in", s.hidden_size}}, .k = narrow});
    }
    for (int i = layers.begin; i < layers.end; ++i) {
      DeclareBlock(fmt::format("{}layers.{}.", at, i), blocks_[static_cast<size_t>(i - first_)],
                   plan);
    }
    if (!HasHead(layers, plan)) return;
    if (final_norm_) AddNorm(plan, norm_, at + "final_layer_norm");
    if (Projects())
      plan.Add(project_out_, {.parts = {{at + "project_out", narrow}}, .k = s.hidden_size});
    dims_.spec.generates = plan.AddHead(head_, {.tied = tied_,
                                                .base = IsBase(at) || at == "decoder.",
                                                .embedding = at + "embed_tokens",
                                                .names = {"lm_head"},
                                                .rows = s.vocab_size,
                                                .columns = narrow});
  }

  void Embed(Pass& pass) override {
    tensor::Device& device = pass.device;
    if (Projects()) {
      Rows narrow = pass.work.qkv->View(pass.rows(), dims_.spec.embedding_size);
      device.Embed(pass.at, *embedding_.rows, narrow);
      project_in_.Run(device, narrow, pass.hidden);
    } else {
      device.Embed(pass.at, *embedding_.rows, pass.hidden);
    }
    device.AddPositions(pass.at, *positions_.rows, pass.hidden);
  }

  void Layer(int index, Pass& pass) override {
    const OptBlock& block = blocks_[static_cast<size_t>(index - first_)];
    Rows h = pass.hidden, normed = pass.Normed(dims_.spec.hidden_size);
    Rows attended = block.attention.Attend(
        pass, norm_before_ ? Input{h, &block.attention_norm, normed} : Input{.rows = h});
    if (norm_before_) {
      block.attention.out.Run(pass.device, attended, h, h);
    } else {
      // The norm cannot run in place: the sum goes to the qkv buffer, which is free after
      // attention.
      Rows sum = pass.work.qkv->View(pass.rows(), dims_.spec.hidden_size);
      block.attention.out.Run(pass.device, attended, sum, h);
      block.attention_norm.Run(pass.device, sum, h);
    }
    ForRowChunks(pass, [&](int first, int count) { RunMlp(block, pass, first, count); });
  }

  void Head(tensor::Device& device, Rows rows, Rows scratch, Rows logits) override {
    head_.Run(device, HeadInput(device, rows, scratch), logits);
  }
  Rows HeadInput(tensor::Device& device, Rows rows, Rows scratch) override {
    Rows in = rows, free = scratch;
    if (final_norm_) {
      norm_.Run(device, in, free);
      std::swap(in, free);
    }
    if (Projects()) {
      Rows narrow = free.Columns(0, dims_.spec.embedding_size);
      project_out_.Run(device, in, narrow);
      in = narrow;
    }
    return in;
  }

 private:
  bool Projects() const { return dims_.spec.embedding_size != dims_.spec.hidden_size; }

  void AddNorm(WeightPlan& plan, Norm& norm, const std::string& name) {
    plan.Add(norm, name, dims_.spec.hidden_size, NormKind::kLayer, 1e-5, affine_);
  }

  void RunMlp(const OptBlock& block, Pass& pass, int first, int count) {
    Rows h = pass.hidden.Slice(first, count);
    Rows x = pass.Normed(dims_.spec.hidden_size).Slice(first, count);
    if (norm_before_) {
      block.mlp.Run(pass, {h, &block.mlp_norm, x}, h, h);
    } else {
      block.mlp.Run(pass, {.rows = h}, x, h);
      block.mlp_norm.Run(pass.device, x, h);
    }
  }

  void DeclareBlock(const std::string& at, OptBlock& block, WeightPlan& plan) {
    const ModelSpec& s = dims_.spec;
    const std::string self = at + "self_attn.";
    Attention& a = block.attention;
    a.heads = a.kv_heads = Heads(plan);
    a.head_dim = s.head_dim;
    a.spec.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    a.rotary = false;
    AddNorm(plan, block.attention_norm, at + "self_attn_layer_norm");
    plan.Add(a.qkv, {.parts = {{self + "q_proj", s.hidden_size, s.num_heads},
                               {self + "k_proj", s.hidden_size, s.num_heads},
                               {self + "v_proj", s.hidden_size, s.num_heads}},
                     .k = s.hidden_size,
                     .bias = bias_});
    plan.Add(a.out, {.parts = {{self + "out_proj", s.hidden_size}},
                     .k = s.hidden_size,
                     .bias = bias_,
                     .row_parallel = true});
    AddNorm(plan, block.mlp_norm, at + "final_layer_norm");
    const int inner = s.intermediate_size;
    block.mlp.columns = MlpColumns(plan);
    block.mlp.activation = activation_;
    plan.Add(block.mlp.up,
             {.parts = {{at + "fc1", inner, inner}}, .k = s.hidden_size, .bias = bias_});
    plan.Add(
        block.mlp.down,
        {.parts = {{at + "fc2", s.hidden_size}}, .k = inner, .bias = bias_, .row_parallel = true});
  }

  bool norm_before_ = true, final_norm_ = true, bias_ = true, affine_ = true, tied_ = true;
  tensor::Activation activation_ = tensor::Activation::kRelu;
  int first_ = 0;
  Table embedding_, positions_;
  Linear project_in_, project_out_;
  std::vector<OptBlock> blocks_;
  Norm norm_;
  Linear head_;
};

}  // namespace

std::unique_ptr<Decoder> MakeOpt(ConfigReader& config) {
  return std::make_unique<OptDecoder>(config);
}

}  // namespace millrace::model
