// Device: the interface between models and hardware. A model is a straight line of these calls; a
// device is one folder (cpu/, cuda/) that implements them.
//
// Rules for every device (docs/decisions/0002-batch-invariance.md):
//  - A row of a result depends on that row of the input only: not on how many rows there are, how
//    they were chunked, or how many threads ran. On the CPU the bits are equal.
//  - Row-parallel products (PackSpec::row_parallel) sum over kVirtualShards ranges of K, pairwise:
//    tensor-parallel degrees 1, 2, 4 and 8 give the same bits when ranks are added pairwise too.
//  - Accumulation is f32 whatever the storage.
//
// Owned by an executor. Used by one thread at a time, the executor's, except where a call says
// otherwise. A wrong shape is a programmer's error.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "core/model_spec.h"
#include "core/step_plan.h"

namespace millrace::tensor {

inline constexpr int kVirtualShards = 8;

// A [rows, cols] matrix of activations in device memory (f32 on the CPU), not owned.
struct Rows {
  void* data = nullptr;
  int rows = 0, cols = 0;
  int stride = 0;                            // elements from one row to the next, >= cols
  Rows Columns(int first, int count) const;  // columns [first, first + count)
  Rows Slice(int first, int count) const;    // rows [first, first + count)
};

// Device memory for activations.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual Rows View(int rows, int cols) = 0;  // REQUIRES: rows * cols <= capacity
};

// Host memory with weights as stored in a file: [rows, cols] row-major, not owned.
struct HostMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rows = 0, cols = 0;
  int stride = 0;  // elements from one row to the next; 0: cols
  size_t Stride() const { return static_cast<size_t>(stride != 0 ? stride : cols); }
};

// How to lay out a weight for y = x W^T: W is [n, k]; the parts are stacked along n in order.
struct PackSpec {
  std::span<const HostMatrix> parts;  // each [n_i, k]; [k, n_i] when `transposed` (GPT-2's Conv1D)
  bool transposed = false;
  bool row_parallel = false;  // tensor parallelism cuts K: sum by virtual shards
  int tensor_parallel = 1;    // the parts are one of this many equal cuts of K: 1, 2, 4 or 8
};

// A weight in the device's own layout and storage type (bf16/f16/f32 as given).
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int n() const = 0;
  virtual int k() const = 0;
  virtual size_t bytes() const = 0;
};

// A vector of f32 parameters (norm weight, bias) in device memory.
class Vector {
 public:
  virtual ~Vector() = default;
};

inline constexpr int kKvBlockUnit = 16;  // a block's tokens are a multiple of it

struct KvShape {
  int num_layers = 0, num_kv_heads = 0, head_dim = 0;
  int block_size = kKvBlockUnit;  // tokens
  int num_blocks = 0;
  DType dtype = DType::kF32;
  bool huge_pages = true;  // faster, but a pool with few blocks in use takes more memory
};

class KvPool {  // the bytes of KV blocks; kv/ tracks which sequence a block belongs to
 public:
  virtual ~KvPool() = default;
  virtual const KvShape& shape() const = 0;
  // Gives the memory of the blocks back to the system as far as they fill pages; their content is
  // lost. Any thread, while others use other blocks. REQUIRES: the blocks are in the pool.
  virtual void ReturnMemory(std::span<const BlockIndex> blocks) = 0;
};

// Layers and heads of a pool, and tokens of one sequence: the unit of ExportKv and ImportKv.
struct PoolKvBox {
  int first_layer = 0, end_layer = 0;
  int first_head = 0, end_head = 0;
  int first_token = 0, end_token = 0;
  size_t Bytes(const KvShape& shape) const;
};

// One sequence's rows in a mixed batch: queries at positions [start, start + num_rows), which see
// keys [max(0, position - window + 1), position].
struct AttentionSpan {
  int first_row = 0, num_rows = 0;     // in q, k, v and out
  int start = 0;                       // position of the first row
  std::span<const BlockIndex> blocks;  // the block table, covering start + num_rows tokens
};

struct AttentionSpec {
  float scale = 1.0f;  // usually 1 / sqrt(head_dim)
  int window = 0;      // keys a query sees, itself included; 0: all
};

struct MatMulExtras {  // y[i] = x[i] W^T + bias + residual[i]; `residual` may be y itself
  const Vector* bias = nullptr;
  Rows residual;  // data == nullptr: none
};

enum class Activation { kRelu, kGelu /* erf */, kGeluTanh, kSilu };

// cos and sin of each position's angles: [positions, rotary_dim / 2] each, host memory, f32.
struct RopeTable {
  const float *cos = nullptr, *sin = nullptr;
  int positions = 0, rotary_dim = 0;  // rotary_dim: the leading part of each head that is rotated
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string Name() const = 0;  // "cpu avx512 x2"

  // kResourceExhausted when there is no memory for it.
  virtual Result<std::unique_ptr<Buffer>> NewBuffer(size_t elements) = 0;
  virtual Result<std::unique_ptr<PackedMatrix>> Pack(const PackSpec& spec) = 0;
  virtual Result<std::unique_ptr<Vector>> NewVector(std::span<const float> values) = 0;
  virtual Result<std::unique_ptr<KvPool>> NewKvPool(const KvShape& shape) = 0;

  virtual void MatMul(Rows x, const PackedMatrix& w, Rows y, const MatMulExtras& extras = {}) = 0;
  // y[i] = x[i] + bias + residual[i]: the end of a MatMul, for sums that are first added over
  // ranks. `residual` and x may be y.
  virtual void FinishProduct(Rows x, Rows y, const MatMulExtras& extras) = 0;
  // y[i] = table[ids[i]]; y[i] += table[ids[i]] when `add`. `table` stays in host memory.
  virtual void Embed(const HostMatrix& table, std::span<const int32_t> ids, Rows y, bool add) = 0;
  virtual void RmsNorm(Rows x, const Vector& weight, float eps, Rows y) = 0;
  virtual void LayerNorm(Rows x, const Vector& weight, const Vector* bias, float eps, Rows y) = 0;
  // RMS norm of each head of [rows, heads * head_dim], in place (Qwen3's q and k norms).
  virtual void HeadRmsNorm(Rows x, int head_dim, const Vector& weight, float eps) = 0;
  // Rotates the pairs (i, i + rotary_dim / 2) of each head in place; row r is at position at[r].
  virtual void Rope(Rows x, int head_dim, std::span<const int32_t> at, const RopeTable& table) = 0;
  virtual void Activate(Rows x, Activation f, Rows y) = 0;                   // y may be x
  virtual void GatedActivate(Rows gate, Rows up, Activation f, Rows y) = 0;  // y = f(gate) * up
  virtual void Add(Rows x, Rows y) = 0;                                      // y += x

  // Stores the rows' keys and values in the blocks of `layer`, then attends over the cache: one
  // fused call for a mixed batch (Orca 4.2). q, out: [rows, heads * head_dim]; k, v: kv_heads.
  virtual void WriteKv(KvPool& pool, int layer, Rows k, Rows v,
                       std::span<const AttentionSpan> spans) = 0;
  virtual void Attend(const KvPool& pool, int layer, Rows q, std::span<const AttentionSpan> spans,
                      const AttentionSpec& spec, Rows out) = 0;
  // Whole blocks, all layers, in the order given. The pools differ only in num_blocks.
  virtual void CopyBlocks(const KvPool& from, KvPool& to, std::span<const BlockCopy> copies) = 0;

  // The box as dense bytes, the same for every device and block size: [layer][K, V][head][token]
  // [head_dim] in the pool's type. `blocks` is the sequence's table, from token 0; the bytes need
  // no alignment. Any thread, also while the device works on other blocks.
  virtual void ExportKv(const KvPool& pool, const PoolKvBox& box,
                        std::span<const BlockIndex> blocks, std::span<std::byte> out) const = 0;
  virtual void ImportKv(KvPool& pool, const PoolKvBox& box, std::span<const BlockIndex> blocks,
                        std::span<const std::byte> in) const = 0;

  // y[i] = x[ids[i]].
  virtual void GatherRows(Rows x, std::span<const int32_t> ids, Rows y) = 0;
  // Waits for all calls above and copies x to the host: [rows, cols] f32, dense.
  virtual void Read(Rows x, float* host) = 0;
  // Copies from the host: `host` may be reused when the call returns. It need not be aligned.
  virtual void Write(const void* host, Rows x) = 0;
};

}  // namespace millrace::tensor
