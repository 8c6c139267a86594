// What lies in a device's memory, and how it is described: activations, weights, tables, KV pools.
// Made by a device (device.h), owned by the caller, and used by the device's thread except where a
// call says otherwise. Descriptions are values; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "core/model_spec.h"
#include "core/step_plan.h"

namespace millrace::tensor {

inline constexpr int kVirtualShards = 8;

// A [rows, cols] matrix of activations in device memory, not owned.
struct Rows {
  void* data = nullptr;
  int rows = 0, cols = 0;
  int stride = 0;                            // elements from one row to the next, >= cols
  DType type = DType::kF32;                  // of an element
  Rows Columns(int first, int count) const;  // columns [first, first + count)
  Rows Slice(int first, int count) const;    // rows [first, first + count)
  size_t row_bytes() const { return BytesOf(type) * static_cast<size_t>(cols); }
};

// Device memory for activations.
class Buffer {
 public:
  virtual ~Buffer() = default;
  // A dense matrix at its start. REQUIRES: it fits.
  virtual Rows View(int rows, int cols, DType type = DType::kF32) = 0;
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
  bool gated = false;         // two parts as large: gates, and what they gate (GatedMatMul)
};

// A weight in the device's own layout and storage type (bf16/f16/f32 as given).
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int n() const = 0;
  virtual int k() const = 0;
  virtual size_t bytes() const = 0;
  // A product reads f32 rows, and rows of this type if that is how it rounds f32: they move fewer
  // bytes and give the same bits.
  virtual DType input() const { return DType::kF32; }
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

// A table of learned rows, one for each token or position.
class Table {
 public:
  virtual ~Table() = default;
};

// cos and sin of each position's angles: [positions, rotary_dim / 2] each, host memory, f32, not
// owned.
struct RopeAngles {
  const float *cos = nullptr, *sin = nullptr;
  int positions = 0, rotary_dim = 0;  // rotary_dim: the leading part of each head that is rotated
};
class RopeTable {  // the same for the device
 public:
  virtual ~RopeTable() = default;
};

class KvPool {  // the bytes of KV blocks; kv/ tracks which sequence a block belongs to
 public:
  virtual ~KvPool() = default;
  virtual const KvShape& shape() const = 0;
  // Gives the memory of the blocks back to the system as far as they fill pages; their content is
  // lost. Any thread, while others use other blocks. REQUIRES: the blocks are in the pool.
  virtual void ReturnMemory(std::span<const BlockIndex> blocks) = 0;
  // Takes from the system now what the first write to these blocks of a layer would take. Any
  // thread, while others use the pool. A device whose memory is there from the start has nothing to
  // do. kUnimplemented: this system cannot. REQUIRES: the blocks are in the pool.
  virtual Status Populate(int /*layer*/, BlockIndex /*first*/, BlockIndex /*end*/) {
    return OkStatus();
  }
};

// Layers and heads of a pool, and tokens of one sequence: the unit of ExportKv and ImportKv.
struct PoolKvBox {
  int first_layer = 0, end_layer = 0;
  int first_head = 0, end_head = 0;
  int first_token = 0, end_token = 0;
  size_t Bytes(const KvShape& shape) const;
};

}  // namespace millrace::tensor
