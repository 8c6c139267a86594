// The layers that architectures consist of, each a few calls of the device, and the context of a
// pass. WeightPlan (weight_plan.h) fills a layer's members when the model loads; the weights may be
// shared with other models (loaded_weight.h). Owned by Model; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "model/rank_sum.h"
#include "tensor/device.h"

namespace millrace::model {

// Activations of one model, allocated once for its largest batch.
struct Workspace {
  std::unique_ptr<tensor::Buffer> hidden;    // [rows, hidden_size]: the residual stream, f32
  std::unique_ptr<tensor::Buffer> normed;    // [rows, max(hidden_size, heads * head_dim)]
  std::unique_ptr<tensor::Buffer> qkv;       // [rows, (heads + 2 kv_heads) * head_dim or more]
  std::unique_ptr<tensor::Buffer> mlp;       // [mlp_rows of the device, mlp_columns]
  std::unique_ptr<tensor::Buffer> gathered;  // [logits rows, hidden_size]
  std::unique_ptr<tensor::Buffer> final;     // [logits rows, hidden_size]
  std::unique_ptr<tensor::Buffer> logits;    // [logits rows, vocab_size]
};

// One pass of some of a step's rows through (part of) the model.
struct Pass {
  tensor::Device& device;
  Workspace& work;
  tensor::RowRange at;
  int layer = 0;                  // the current layer
  const tensor::RopeTable* rope;  // null: positions are learned
  tensor::Rows hidden;            // [rows, hidden_size]

  int rows() const { return at.count; }
  tensor::Rows Normed(int cols, DType type = DType::kF32) const {
    return work.normed->View(rows(), cols, type);
  }
};

using tensor::NormKind;

struct Norm {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-5f;
  std::shared_ptr<const tensor::Vector> weight;
  std::shared_ptr<const tensor::Vector> bias;  // may be null

  tensor::NormSpec spec() const { return {kind, weight.get(), bias.get(), epsilon}; }
  void Run(tensor::Device& device, tensor::Rows x, tensor::Rows y) const {
    device.Norm(x, spec(), y);
  }
};

// What a product multiplies: rows as they are, or rows that are normed on the way, for which there
// is room in `normed`.
struct Input {
  tensor::Rows rows;
  const Norm* norm = nullptr;  // null: as they are
  tensor::Rows normed;
};

// y = x W^T + bias + residual.
struct Linear {
  std::shared_ptr<const tensor::PackedMatrix> weight;
  std::shared_ptr<const tensor::Vector> bias;  // may be null
  RankSum* over_ranks = nullptr;               // the model's, when `weight` is cut along K

  void Run(tensor::Device& device, tensor::Rows x, tensor::Rows y,
           tensor::Rows residual = {}) const {
    if (over_ranks == nullptr) return device.MatMul(x, *weight, y, {bias.get(), residual});
    over_ranks->Run(device, x, *weight, y, {bias.get(), residual});
  }
  // REQUIRES: the weight is not cut along K.
  void Run(tensor::Device& device, const Input& x, tensor::Rows y) const {
    if (x.norm == nullptr) return Run(device, x.rows, y);
    device.NormedMatMul(x.rows, x.norm->spec(), x.normed, *weight, y, {bias.get(), {}});
  }
};

// Self-attention over the paged cache: q, k and v in one product, rotation, cache, attention.
struct Attention {
  int heads = 0, kv_heads = 0, head_dim = 0;  // of this rank
  tensor::AttentionSpec spec;
  bool rotary = true;
  Linear qkv;
  std::unique_ptr<Norm> q_norm, k_norm;  // of each head; Qwen3: both, with one epsilon
  Linear out;

  // Returns attended heads, [rows, heads * head_dim], in pass.Normed(). The caller applies `out`.
  tensor::Rows Attend(Pass& pass, const Input& x) const;
};

// down(f(gate(x)) * up(x)).
struct GatedMlp {
  int columns = 0;  // of gate and of up, of this rank
  tensor::Activation activation = tensor::Activation::kSilu;
  Linear gate_up, down;

  // y = mlp(norm(x)) + residual, for at most the device's mlp_rows. `normed`: room for norm(x).
  void Run(Pass& pass, const Norm& norm, tensor::Rows x, tensor::Rows normed, tensor::Rows y,
           tensor::Rows residual) const;
};

// down(f(up(x))).
struct Mlp {
  int columns = 0;  // of this rank
  tensor::Activation activation = tensor::Activation::kGelu;
  Linear up, down;

  void Run(Pass& pass, const Input& x, tensor::Rows y, tensor::Rows residual) const;
};

// A learned table, which a device may read in place from the mapped file.
struct Table {
  std::shared_ptr<const tensor::Table> rows;
};

// Calls f(first_row, num_rows) over the batch in pieces of the device's mlp_rows.
template <typename F>
void ForRowChunks(const Pass& pass, F&& f) {
  const int step = pass.device.Limits().mlp_rows;
  for (int first = 0; first < pass.rows(); first += step) {
    f(first, std::min(step, pass.rows() - first));
  }
}

}  // namespace millrace::model
