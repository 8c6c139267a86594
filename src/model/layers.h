// The layers that architectures consist of, each a few calls of the device, and the context of a
// pass. WeightPlan (weight_plan.h) fills a layer's members when the model loads. Owned by Model;
// one thread.
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

// Rows of a step that the feed-forward part processes together: bounds its buffer, changes no bit.
inline constexpr int kMlpRowsMax = 512;

// The KV location of some of a batch's rows.
struct BatchKv {
  tensor::KvPool* pool = nullptr;
  int first_layer = 0;                           // the model's layer that is the pool's layer 0
  std::span<const tensor::AttentionSpan> spans;  // rows count from the start of the batch
};

// A flattened batch, or those rows of a larger one that are at the same layer; owns nothing.
struct Batch {
  std::span<const TokenId> tokens;     // [rows]; only Embed reads them
  std::span<const int32_t> positions;  // [rows]
  std::span<const BatchKv> kv;         // the spans together cover all rows; Embed needs none
  int first_row = 0;                   // offset in the model's hidden rows

  int rows() const { return static_cast<int>(positions.size()); }
};

// Activations of one model, allocated once for its largest batch.
struct Workspace {
  std::unique_ptr<tensor::Buffer> hidden;    // [rows, hidden_size]: the residual stream
  std::unique_ptr<tensor::Buffer> normed;    // [rows, max(hidden_size, heads * head_dim)]
  std::unique_ptr<tensor::Buffer> qkv;       // [rows, (heads + 2 kv_heads) * head_dim or more]
  std::unique_ptr<tensor::Buffer> mlp;       // [kMlpRowsMax, mlp_columns]
  std::unique_ptr<tensor::Buffer> gathered;  // [logits rows, hidden_size]
  std::unique_ptr<tensor::Buffer> final;     // [logits rows, hidden_size]
  std::unique_ptr<tensor::Buffer> logits;    // [logits rows, vocab_size]
  std::vector<int32_t> ids;                  // [rows]
};

// One pass of a batch through (part of) the model.
struct Pass {
  tensor::Device& device;
  Workspace& work;
  const Batch& batch;
  int layer = 0;  // the current layer
  const tensor::RopeTable& rope;
  tensor::Rows hidden;  // [rows, hidden_size]

  int rows() const { return batch.rows(); }
  tensor::Rows Normed(int cols) const { return work.normed->View(rows(), cols); }
};

// y = x W^T + bias + residual.
struct Linear {
  std::unique_ptr<tensor::PackedMatrix> weight;
  std::unique_ptr<tensor::Vector> bias;  // may be null
  RankSum* over_ranks = nullptr;         // the model's, when `weight` is cut along K

  void Run(tensor::Device& device, tensor::Rows x, tensor::Rows y,
           tensor::Rows residual = {}) const {
    if (over_ranks == nullptr) return device.MatMul(x, *weight, y, {bias.get(), residual});
    over_ranks->Run(device, x, *weight, y, {bias.get(), residual});
  }
};

enum class NormKind { kRms, kLayer };

struct Norm {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-5f;
  std::unique_ptr<tensor::Vector> weight;
  std::unique_ptr<tensor::Vector> bias;  // may be null

  void Run(tensor::Device& device, tensor::Rows x, tensor::Rows y) const {
    if (kind == NormKind::kRms) {
      device.RmsNorm(x, *weight, epsilon, y);
    } else {
      device.LayerNorm(x, *weight, bias.get(), epsilon, y);
    }
  }
};

// Self-attention over the paged cache: q, k and v in one product, rotation, cache, attention.
struct Attention {
  int heads = 0, kv_heads = 0, head_dim = 0;  // of this rank
  tensor::AttentionSpec spec;
  bool rotary = true;
  Linear qkv;
  std::unique_ptr<Norm> q_norm, k_norm;  // of each head; Qwen3
  Linear out;

  int q_columns() const { return heads * head_dim; }
  int kv_columns() const { return kv_heads * head_dim; }
  // Turns normed rows into attended heads [rows, q_columns()], which replace `x`. The caller
  // applies `out`.
  tensor::Rows Attend(Pass& pass, tensor::Rows x) const;
};

// down(f(gate(x)) * up(x)).
struct GatedMlp {
  int columns = 0;  // of gate and of up, of this rank
  tensor::Activation activation = tensor::Activation::kSilu;
  Linear gate_up, down;

  // y = mlp(x) + residual, for at most kMlpRowsMax rows.
  void Run(Pass& pass, tensor::Rows x, tensor::Rows y, tensor::Rows residual) const;
};

// down(f(up(x))).
struct Mlp {
  int columns = 0;  // of this rank
  tensor::Activation activation = tensor::Activation::kGelu;
  Linear up, down;

  void Run(Pass& pass, tensor::Rows x, tensor::Rows y, tensor::Rows residual) const;
};

// A learned table read in place from the mapped file.
struct Table {
  tensor::HostMatrix rows;
  std::vector<uint8_t> aligned_copy;  // used only when the tensor is unaligned in the file
};

// Calls f(first_row, num_rows) over the batch in pieces of kMlpRowsMax.
template <typename F>
void ForRowChunks(const Pass& pass, F&& f) {
  for (int first = 0; first < pass.rows(); first += kMlpRowsMax) {
    f(first, std::min(kMlpRowsMax, pass.rows() - first));
  }
}

}  // namespace millrace::model
