#include "tensor/cpu/cpu_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tensor/cpu/attend.h"
#include "tensor/cpu/cpu_features.h"
#include "tensor/cpu/cpu_objects.h"
#include "tensor/cpu/elementwise.h"
#include "tensor/cpu/float16.h"
#include "tensor/cpu/for_rows.h"
#include "tensor/cpu/kv_box.h"
#include "tensor/cpu/kv_pool.h"
#include "tensor/cpu/packed_matrix.h"
#include "tensor/cpu/product.h"
#include "tensor/cpu/sample.h"
#include "tensor/cpu/scratch.h"
#include "tensor/cpu/thread_pool.h"

namespace millrace::tensor {
namespace {

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& options)
      : pool_(options.threads, options.pin_threads),
        scratch_(options.threads),
        choosers_(options.threads) {}

  std::string Name() const override { return CpuName(pool_.threads()); }

  std::string NumericClass() const override { return CpuNumericClass(); }
  DeviceLimits Limits() const override { return {}; }
  millrace::MemoryAvailable MemoryAvailable() const override { return ReadMemoryAvailable(); }

  Result<std::unique_ptr<Buffer>> NewBuffer(size_t bytes) override {
    MR_ASSIGN_OR_RETURN(auto memory, HostMemory::Allocate(bytes, "activations"));
    return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(std::move(memory), bytes));
  }

  Result<std::unique_ptr<PackedMatrix>> Pack(const PackSpec& spec) override {
    MR_ASSIGN_OR_RETURN(auto matrix,
                        CpuPackedMatrix::Pack(spec, weights_, pool_, products_.block_input()));
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
  }

  Result<std::unique_ptr<Vector>> NewVector(std::span<const float> values) override {
    const size_t padded = (values.size() + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
    MR_ASSIGN_OR_RETURN(auto memory, HostMemory::Allocate(padded * sizeof(float), "a vector"));
    auto vector = std::make_unique<CpuVector>(std::move(memory), values.size());
    std::ranges::transform(values, vector->data(), [](float x) { return FactorOf(x); });
    return std::unique_ptr<Vector>(std::move(vector));
  }

  Result<std::unique_ptr<Table>> NewTable(const HostMatrix& rows) override {
    return std::unique_ptr<Table>(std::make_unique<CpuTable>(rows));
  }

  Result<std::unique_ptr<RopeTable>> NewRopeTable(const RopeAngles& angles) override {
    return std::unique_ptr<RopeTable>(std::make_unique<CpuRopeTable>(angles));
  }

  Result<std::unique_ptr<KvPool>> NewKvPool(const KvShape& shape, Place) override {
    MR_CHECK(shape.block_size > 0 && shape.block_size % kKeyRun == 0)
        << "block_size " << shape.block_size;
    MR_ASSIGN_OR_RETURN(auto pool, CpuKvPool::New(shape));
    return std::unique_ptr<KvPool>(std::move(pool));
  }

  void MatMul(Rows x, const PackedMatrix& w, Rows y, const MatMulExtras& extras) override {
    products_.Run({x}, w, y, extras, std::nullopt);
  }
  // On tiles rows are normed as they are packed.
  void NormedMatMul(Rows x, const NormSpec& norm, Rows normed, const PackedMatrix& w, Rows y,
                    const MatMulExtras& extras) override {
    products_.Run({x, &norm, normed}, w, y, extras, std::nullopt);
  }
  // A gate meets what it gates before either is written.
  void GatedMatMul(Rows x, const NormSpec& norm, Rows normed, const PackedMatrix& w,
                   const Vector* bias, Activation f, Rows both, Rows y) override {
    if (static_cast<const CpuPackedMatrix&>(w).alternates()) {
      return products_.Run({x, &norm, normed}, w, y, {.bias = bias, .residual = {}}, f);
    }
    const Rows joined = y.type == DType::kF32 ? y : both.Columns(0, y.cols);
    Device::GatedMatMul(x, norm, normed, w, bias, f, both, joined);
    if (y.type != DType::kF32) RoundRows(joined, y);
  }

  void FinishProduct(Rows x, Rows y, const MatMulExtras& extras) override {
    CheckSameShape(x, y);
    if (extras.residual.data != nullptr) CheckSameShape(extras.residual, y);
    const float* bias = extras.bias == nullptr ? nullptr : DataOf(*extras.bias, x.cols);
    ForRows(pool_, x, [&](int first, int count) {
      Rows residual = extras.residual;
      if (residual.data != nullptr) residual = residual.Slice(first, count);
      FinishRows(x.Slice(first, count), bias, residual, y.Slice(first, count));
    });
  }

  void BeginStep(const Step& step) override;

  void Embed(RowRange at, const Table& tokens, Rows y) override {
    AddEmbeddings(at, step_.tokens, tokens, y, false);
  }

  void AddPositions(RowRange at, const Table& positions, Rows y) override {
    AddEmbeddings(at, step_.positions, positions, y, true);
  }

  void RmsNorm(Rows x, const Vector& weight, float eps, Rows y) override {
    NormRows(pool_, x, {NormKind::kRms, &weight, nullptr, eps}, y);
  }

  void LayerNorm(Rows x, const Vector& weight, const Vector* bias, float eps, Rows y) override {
    NormRows(pool_, x, {NormKind::kLayer, &weight, bias, eps}, y);
  }

  void HeadRmsNorm(Rows x, int head_dim, const Vector& weight, float eps) override {
    MR_CHECK(x.cols % head_dim == 0);
    CheckF32(x);
    const float* w = DataOf(weight, head_dim);
    ForRows(pool_, x, [&](int first, int count) {
      for (int r = first; r < first + count; ++r) {
        const Rows heads{x.Slice(r, 1).data, x.cols / head_dim, head_dim, head_dim};
        RmsNormRows(heads, w, eps, heads);
      }
    });
  }

  void Rope(RowRange at, const RopeTable& table, int head_dim, Rows x) override {
    const RopeAngles& angles = static_cast<const CpuRopeTable&>(table).angles;
    MR_CHECK(x.cols % head_dim == 0 && angles.rotary_dim <= head_dim && angles.rotary_dim % 2 == 0);
    const auto positions = Of(at, step_.positions, x);
    CheckF32(x);
    for (int32_t position : positions) {
      MR_CHECK(position >= 0 && position < angles.positions) << position;
    }
    ForRows(pool_, x, [&](int first, int count) {
      RopeRows(x.Slice(first, count), head_dim, &positions[first], angles);
    });
  }

  void Activate(Rows x, Activation f, Rows y) override {
    CheckSameShape(x, y);
    ForRows(pool_, x, [&](int first, int count) {
      ActivateRows(x.Slice(first, count), f, y.Slice(first, count));
    });
  }

  void GatedActivate(Rows gate, Rows up, Activation f, Rows y) override {
    CheckSameShape(gate, up);
    CheckSameShape(gate, y);
    ForRows(pool_, gate, [&](int first, int count) {
      GatedActivateRows(gate.Slice(first, count), up.Slice(first, count), f, y.Slice(first, count));
    });
  }

  void Add(Rows x, Rows y) override {
    CheckSameShape(x, y);
    ForRows(pool_, x,
            [&](int first, int count) { AddRows(x.Slice(first, count), y.Slice(first, count)); });
  }

  void WriteKv(RowRange at, int layer, Rows k, Rows v) override {
    CheckF32(k);
    CheckF32(v);
    ForParts(at, k, [&](const StepPart& part, int first) {
      WriteKvSpans(static_cast<CpuKvPool&>(*part.pool), layer - part.first_layer,
                   k.Slice(first, part.rows), v.Slice(first, part.rows), part.spans, pool_);
    });
  }

  void Attend(RowRange at, int layer, const AttentionSpec& spec, Rows q, Rows out) override {
    CheckF32(q);
    MR_CHECK(out.type == DType::kF32 || out.type == products_.block_input()) << DTypeName(out.type);
    ForParts(at, q, [&](const StepPart& part, int first) {
      attention_.Run(static_cast<const CpuKvPool&>(*part.pool), layer - part.first_layer,
                     q.Slice(first, part.rows), part.spans, spec, out.Slice(first, part.rows),
                     pool_, scratch_);
    });
  }

  void CopyBlocks(const KvPool& from, KvPool& to, std::span<const BlockCopy> copies) override;

  void ExportKv(const KvPool& pool, const PoolKvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override {
    ForEachHead(pool, box, blocks, out.size(),
                [&](const KvHeadSpan& span, size_t keys, size_t values) {
                  ExportKvHead(span, &out[keys], &out[values]);
                });
  }

  void ImportKv(KvPool& pool, const PoolKvBox& box, std::span<const BlockIndex> blocks,
                std::span<const std::byte> in) const override {
    ForEachHead(pool, box, blocks, in.size(),
                [&](const KvHeadSpan& span, size_t keys, size_t values) {
                  ImportKvHead(span, &in[keys], &in[values]);
                });
  }

  void GatherOutputs(Rows x, int first, Rows y) override {
    MR_CHECK(x.cols == y.cols && x.type == y.type);
    const auto rows = Of({first, y.rows}, step_.outputs, y);
    for (int r = 0; r < y.rows; ++r) {
      std::memcpy(y.Slice(r, 1).data, x.Slice(rows[r], 1).data, x.row_bytes());
    }
  }

  void Choose(Rows logits, std::span<const ChooseSpec> how,
              std::span<std::optional<TokenId>> out) override {
    const auto rows = static_cast<size_t>(logits.rows);
    MR_CHECK(how.size() == rows && out.size() == rows) << how.size() << " of " << rows << " rows";
    CheckF32(logits);
    pool_.ParallelFor(logits.rows, 1, [&](int begin, int end, int thread) {
      for (int r = begin; r < end; ++r) {
        const auto* row = static_cast<const float*>(logits.Slice(r, 1).data);
        out[r] = choosers_[thread].Choose({row, static_cast<size_t>(logits.cols)}, how[r]);
      }
    });
  }

  void Read(Rows x, void* host) override {
    for (int r = 0; r < x.rows; ++r) {
      std::memcpy(static_cast<uint8_t*>(host) + r * x.row_bytes(), x.Slice(r, 1).data,
                  x.row_bytes());
    }
  }

  void Write(const void* host, Rows x) override {
    for (int r = 0; r < x.rows; ++r) {
      std::memcpy(x.Slice(r, 1).data, static_cast<const uint8_t*>(host) + r * x.row_bytes(),
                  x.row_bytes());
    }
  }

 private:
  // The numbers of a range of the step's rows, one for each row of x.
  template <typename T>
  static std::span<const T> Of(RowRange at, std::span<const T> numbers, const Rows& x) {
    MR_CHECK(at.first >= 0 && at.count == x.rows &&
             static_cast<size_t>(at.first + at.count) <= numbers.size())
        << x.rows << " rows for [" << at.first << ", " << at.first + at.count << ") of "
        << numbers.size();
    return numbers.subspan(at.first, at.count);
  }

  void AddEmbeddings(RowRange at, std::span<const int32_t> step_ids, const Table& table, Rows y,
                     bool add) {
    const HostMatrix& rows = static_cast<const CpuTable&>(table).rows;
    MR_CHECK(y.cols == rows.cols) << y.cols << " columns of " << rows.cols;
    CheckF32(y);
    const auto ids = Of(at, step_ids, y);
    ForRows(pool_, y, [&](int first, int count) {
      EmbedRows(rows, &ids[first], y.Slice(first, count), add);
    });
  }

  // task(part, its first row in x) for the step's parts in the range.
  template <typename Task>
  void ForParts(RowRange at, const Rows& x, Task task) {
    MR_CHECK(at.count == x.rows) << x.rows << " rows for " << at.count;
    for (const StepPart& part : step_.parts) {
      const int first = part.first_row - at.first;
      if (first + part.rows <= 0 || first >= at.count) continue;
      MR_CHECK(first >= 0 && first + part.rows <= at.count) << "a part is partly in the range";
      task(part, first);
    }
  }

  // task(head, offset of its keys in the dense bytes, offset of its values).
  template <typename Task>
  static void ForEachHead(const KvPool& pool, const PoolKvBox& box,
                          std::span<const BlockIndex> blocks, size_t bytes, Task task);

  // Asked once: the processor takes long to answer in a virtual machine.
  const bool on_tiles_ = CpuUsesAmx();
  const int limbs_ = CpuActivationLimbs();
  ThreadPool pool_;
  MemoryArena weights_;
  Scratch scratch_;
  ProductRunner products_{limbs_, on_tiles_, pool_, scratch_};
  AttentionRunner attention_{limbs_ == 1, on_tiles_};
  std::vector<TokenChooser> choosers_;  // by thread
  Step step_;
};

void CpuDevice::BeginStep(const Step& step) {
  MR_CHECK(step.tokens.empty() || step.tokens.size() == step.positions.size())
      << step.tokens.size() << " tokens for " << step.rows() << " rows";
  int end = 0;
  for (const StepPart& part : step.parts) {
    MR_CHECK(part.first_row >= end && part.rows >= 0) << "parts that overlap";
    end = part.first_row + part.rows;
  }
  MR_CHECK(end <= step.rows()) << end << " rows of " << step.rows();
  for (int32_t row : step.outputs) MR_CHECK(row >= 0 && row < step.rows()) << row;
  step_ = step;
}

template <typename Task>
void CpuDevice::ForEachHead(const KvPool& pool, const PoolKvBox& box,
                            std::span<const BlockIndex> blocks, size_t bytes, Task task) {
  const auto& kv = static_cast<const CpuKvPool&>(pool);
  const KvShape& shape = kv.shape();
  MR_CHECK(0 <= box.first_layer && box.first_layer <= box.end_layer &&
           box.end_layer <= shape.num_layers && 0 <= box.first_head &&
           box.first_head <= box.end_head && box.end_head <= shape.num_kv_heads &&
           0 <= box.first_token && box.first_token <= box.end_token)
      << "the box is outside its pool";
  MR_CHECK(static_cast<int64_t>(blocks.size()) * shape.block_size >= box.end_token)
      << blocks.size() << " blocks for " << box.end_token << " tokens";
  for (BlockIndex block : blocks) MR_CHECK(block >= 0 && block < shape.num_blocks) << block;
  MR_CHECK(bytes == box.Bytes(shape)) << bytes << " bytes for " << box.Bytes(shape);
  if (bytes == 0) return;
  const size_t head_bytes =
      BytesOf(shape.dtype) * shape.head_dim * (box.end_token - box.first_token);
  const size_t heads = box.end_head - box.first_head;
  size_t at = 0;
  for (int layer = box.first_layer; layer < box.end_layer; ++layer, at += heads * head_bytes) {
    for (int head = box.first_head; head < box.end_head; ++head, at += head_bytes) {
      task({&kv, layer, head, blocks, box.first_token, box.end_token}, at, at + heads * head_bytes);
    }
  }
}

void CpuDevice::CopyBlocks(const KvPool& from, KvPool& to, std::span<const BlockCopy> copies) {
  const auto& source = static_cast<const CpuKvPool&>(from);
  const auto& target = static_cast<const CpuKvPool&>(to);
  MR_CHECK(source.block_bytes() == target.block_bytes() &&
           source.shape().num_layers == target.shape().num_layers);
  // A later copy may read what an earlier one wrote, so threads divide the layers, not the copies.
  pool_.ParallelFor(source.shape().num_layers, copies.empty() ? source.shape().num_layers : 1,
                    [&](int begin, int end, int) {
                      for (int layer = begin; layer < end; ++layer) {
                        for (const BlockCopy& copy : copies) {
                          std::memmove(target.block(layer, copy.to), source.block(layer, copy.from),
                                       source.block_bytes());
                        }
                      }
                    });
}

}  // namespace

Result<std::unique_ptr<Device>> NewCpuDevice(const DeviceOptions& options) {
  if (options.threads < 1 || options.threads > ThreadPool::kMaxThreads) {
    return InvalidArgument(fmt::format("threads must be in [1, {}], got {}",
                                       ThreadPool::kMaxThreads, options.threads));
  }
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(options));
}

}  // namespace millrace::tensor
