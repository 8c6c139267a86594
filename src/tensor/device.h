// Device: the interface between models and hardware. A model is a straight line of these calls; a
// device is one folder (cpu/) that implements them. Calls with a body here consist of smaller ones;
// a device may do them in one pass, with the same bits as its small calls.
//
// Rules for every device (docs/decisions/0002-batch-invariance.md):
//  - A row of a result depends on that row of the input only: not on how many rows there are, how
//    they were chunked, or how many threads ran. On the CPU the bits are equal.
//  - Row-parallel products (PackSpec::row_parallel) sum over kVirtualShards ranges of K, pairwise:
//    tensor-parallel degrees 1, 2, 4 and 8 give the same bits when ranks are added pairwise too.
//  - Accumulation is f32 whatever the storage.
//  - Matrices, vectors and tables are immutable. Other devices of the process may use them if they
//    are of the same kind, also after the one that made them is gone.
//
// Owned by the model of a worker. Used by one thread at a time, the computing one, except where a
// call says otherwise. A wrong shape is a programmer's error.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/host_memory.h"
#include "base/status.h"
#include "core/step_plan.h"
#include "tensor/choose_spec.h"
#include "tensor/objects.h"
#include "tensor/step.h"

namespace millrace::tensor {

struct AttentionSpec {
  float scale = 1.0f;  // usually 1 / sqrt(head_dim)
  int window = 0;      // keys a query sees, itself included; 0: all
};

struct MatMulExtras {  // y[i] = x[i] W^T + bias + residual[i]; `residual` may be y itself
  const Vector* bias = nullptr;
  Rows residual;  // data == nullptr: none
};

// How many rows the device takes at a time in products whose buffer this bounds. They change no
// bit.
struct DeviceLimits {
  int mlp_rows = 512;    // of the feed-forward part
  int sum_rows = 512;    // of a product that is added over ranks
  int logits_rows = 64;  // of the vocabulary projection
};

// The norm of rows before a product. `bias`: of a layer norm, or null.
enum class NormKind { kRms, kLayer };
struct NormSpec {
  NormKind kind = NormKind::kRms;
  const Vector *weight = nullptr, *bias = nullptr;
  float epsilon = 0;
};

enum class Place { kDevice, kHost };

enum class Activation { kRelu, kGelu /* erf */, kGeluTanh, kSilu };

// What happens to q, k and v between their product and attention: [heads of q, of k, of v] in a
// row.
struct QkvSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;
  const Vector *q_norm = nullptr, *k_norm = nullptr;  // RMS norm of each head; null: none
  float epsilon = 0;
  const RopeTable* rope = nullptr;  // null: positions are learned

  int q_columns() const { return heads * head_dim; }
  int kv_columns() const { return kv_heads * head_dim; }
};

// What every kind of device may be told.
struct DeviceOptions {
  int threads = 1;          // on the host, the calling thread included; 1 to 256
  bool pin_threads = true;  // if there are enough CPUs
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string Name() const = 0;  // "cpu avx512 x2"
  // Devices of one class compute the same bits: "cpu-bits-3".
  virtual std::string NumericClass() const = 0;
  virtual DeviceLimits Limits() const = 0;
  // For weights, activations and KV.
  virtual millrace::MemoryAvailable MemoryAvailable() const = 0;

  // kResourceExhausted when there is no memory for it.
  virtual Result<std::unique_ptr<Buffer>> NewBuffer(size_t bytes) = 0;
  virtual Result<std::unique_ptr<PackedMatrix>> Pack(const PackSpec& spec) = 0;
  virtual Result<std::unique_ptr<Vector>> NewVector(std::span<const float> values) = 0;
  // What is given stays unchanged while the table exists: a device may read it in place.
  virtual Result<std::unique_ptr<Table>> NewTable(const HostMatrix& rows) = 0;
  virtual Result<std::unique_ptr<RopeTable>> NewRopeTable(const RopeAngles& angles) = 0;
  virtual Result<std::unique_ptr<KvPool>> NewKvPool(const KvShape& shape,
                                                    Place place = Place::kDevice) = 0;

  virtual void MatMul(Rows x, const PackedMatrix& w, Rows y, const MatMulExtras& extras = {}) = 0;
  // MatMul of norm(x), with room for it in `normed`, whose content is undefined afterwards.
  virtual void NormedMatMul(Rows x, const NormSpec& norm, Rows normed, const PackedMatrix& w,
                            Rows y, const MatMulExtras& extras = {});
  // y = f(gate) * up, with gate and up the halves of norm(x) W^T + bias, for which there is room in
  // `both`. y may begin where `both` does. Its type: f32, or the input of a weight of this device.
  virtual void GatedMatMul(Rows x, const NormSpec& norm, Rows normed, const PackedMatrix& w,
                           const Vector* bias, Activation f, Rows both, Rows y);
  // y[i] = x[i] + bias + residual[i]: the end of a MatMul, for sums that are first added over
  // ranks. `residual` and x may be y.
  virtual void FinishProduct(Rows x, Rows y, const MatMulExtras& extras) = 0;
  virtual void RmsNorm(Rows x, const Vector& weight, float eps, Rows y) = 0;
  virtual void LayerNorm(Rows x, const Vector& weight, const Vector* bias, float eps, Rows y) = 0;
  void Norm(Rows x, const NormSpec& norm, Rows y);  // one of these two
  // RMS norm of each head of [rows, heads * head_dim], in place (Qwen3's q and k norms).
  virtual void HeadRmsNorm(Rows x, int head_dim, const Vector& weight, float eps) = 0;
  virtual void Activate(Rows x, Activation f, Rows y) = 0;                   // y may be x
  virtual void GatedActivate(Rows gate, Rows up, Activation f, Rows y) = 0;  // y = f(gate) * up
  virtual void Add(Rows x, Rows y) = 0;                                      // y += x

  // The batch of all calls that take a RowRange, until the next one. `layer` is the model's.
  virtual void BeginStep(const Step& step) = 0;
  // y = the rows of the tokens; y += the rows of the positions.
  virtual void Embed(RowRange at, const Table& tokens, Rows y) = 0;
  virtual void AddPositions(RowRange at, const Table& positions, Rows y) = 0;
  // Rotates the pairs (i, i + rotary_dim / 2) of each head by the row's position, in place.
  virtual void Rope(RowRange at, const RopeTable& table, int head_dim, Rows x) = 0;
  // Stores the rows' keys and values in the pools: [rows, kv_heads * head_dim] each.
  virtual void WriteKv(RowRange at, int layer, Rows k, Rows v) = 0;
  // All from the product to attention: head norms and rotation of q and k in place, WriteKv.
  virtual void StoreQkv(RowRange at, int layer, const QkvSpec& spec, Rows qkv);
  // Attends over what is stored: one fused call for a mixed batch (Orca section 4.2).
  // q, out: [rows, heads * head_dim]. The type of `out`: as in GatedMatMul.
  virtual void Attend(RowRange at, int layer, const AttentionSpec& spec, Rows q, Rows out) = 0;
  // y[i] = x[outputs[first + i]], with x the step's rows.
  virtual void GatherOutputs(Rows x, int first, Rows y) = 0;

  // Whole blocks, all layers, in the order given. The pools differ only in num_blocks.
  virtual void CopyBlocks(const KvPool& from, KvPool& to, std::span<const BlockCopy> copies) = 0;

  // The box as dense bytes, the same for every device and block size: [layer][K, V][head][token]
  // [head_dim] in the pool's type. `blocks` is the sequence's table, from token 0; the bytes need
  // no alignment. Any thread, also while the device works on other blocks.
  virtual void ExportKv(const KvPool& pool, const PoolKvBox& box,
                        std::span<const BlockIndex> blocks, std::span<std::byte> out) const = 0;
  virtual void ImportKv(KvPool& pool, const PoolKvBox& box, std::span<const BlockIndex> blocks,
                        std::span<const std::byte> in) const = 0;

  // out[i]: the token that how[i] chooses from row i, as TokenChooser does.
  virtual void Choose(Rows logits, std::span<const ChooseSpec> how,
                      std::span<std::optional<TokenId>> out) = 0;
  // Waits for all calls above and copies x to the host: dense, in x's type.
  virtual void Read(Rows x, void* host) = 0;
  // The reverse: `host` may be reused when the call returns. It need not be aligned.
  virtual void Write(const void* host, Rows x) = 0;
};

}  // namespace millrace::tensor
