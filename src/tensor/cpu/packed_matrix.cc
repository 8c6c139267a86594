#include "tensor/cpu/packed_matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace millrace::tensor {
namespace {

// Where output j's values lie in the file: value i is at data + i * step.
template <typename T>
struct Source {
  const T* data = nullptr;
  size_t step = 0;
};

template <typename T>
Source<T> FindSource(const PackSpec& spec, int output) {
  for (const HostMatrix& part : spec.parts) {
    const int n = spec.transposed ? part.cols : part.rows;
    if (output < n) {
      const T* data = static_cast<const T*>(part.data);
      return spec.transposed ? Source<T>{data + output, part.Stride()}
                             : Source<T>{data + static_cast<size_t>(output) * part.Stride(), 1};
    }
    output -= n;
  }
  return {};
}

// Packs values [k_begin, k_end) of one lane; `to` is the lane's place in the pack of k = 0.
template <typename T>
void CopyLane(const Source<T>& from, int k_begin, int k_end, T* to) {
  for (int k = k_begin; k < k_end; ++k) to[k * size_t{kPanelWidth}] = from.data[k * from.step];
}

// The same for the two lanes that share 32-bit words: one store where two would be.
void CopyLanePair(const Source<uint16_t>& low, const Source<uint16_t>& high, int k_begin, int k_end,
                  uint32_t* to) {
  for (int k = k_begin; k < k_end; ++k) {
    to[k * size_t{kPanelWidth / 2}] = low.data[k * low.step] | uint32_t{high.data[k * high.step]}
                                                                   << 16;
  }
}

template <typename T>
void PackPanel(const PackSpec& spec, DType dtype, int n, int k, int first, void* panel) {
  // Zeros that lanes past the last output read: step 0.
  static constexpr T kZero = 0;
  Source<T> sources[kPanelWidth];
  for (int j = 0; j < kPanelWidth; ++j) {
    sources[j] = first + j < n ? FindSource<T>(spec, first + j) : Source<T>{&kZero, 0};
  }
  // A block is as many k as keep both sides in L1: rows of the file are read in runs of some lines;
  // columns share their lines with the neighbouring lanes.
  const int block = spec.transposed ? 8 : 128;
  for (int k_begin = 0; k_begin < k; k_begin += block) {
    const int k_end = std::min(k, k_begin + block);
    for (int j = 0; j < kPanelWidth; ++j) {
      if constexpr (sizeof(T) == 2) {
        if (dtype == DType::kBF16) {
          if (j >= kPanelWidth / 2) break;
          CopyLanePair(sources[j], sources[j + kPanelWidth / 2], k_begin, k_end,
                       static_cast<uint32_t*>(panel) + j);
          continue;
        }
      }
      CopyLane(sources[j], k_begin, k_end, static_cast<T*>(panel) + j);
    }
  }
}

Status CheckParts(const PackSpec& spec) {
  if (spec.parts.empty()) return InvalidArgument("a weight has no parts");
  const HostMatrix& first = spec.parts[0];
  const int k = spec.transposed ? first.rows : first.cols;
  for (const HostMatrix& part : spec.parts) {
    const int part_k = spec.transposed ? part.rows : part.cols;
    if (part.rows <= 0 || part.cols <= 0) {
      return InvalidArgument(
          fmt::format("a weight is [{}, {}]: nothing to multiply with", part.rows, part.cols));
    }
    if (part_k != k || part.dtype != first.dtype) {
      return InvalidArgument(fmt::format("parts of one weight differ: {} inputs of {} and {} of {}",
                                         k, DTypeName(first.dtype), part_k, DTypeName(part.dtype)));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<CpuPackedMatrix>> CpuPackedMatrix::Pack(const PackSpec& spec,
                                                               MemoryArena& arena,
                                                               ThreadPool& pool) {
  MR_RETURN_IF_ERROR(CheckParts(spec));
  MR_CHECK(kVirtualShards % spec.tensor_parallel == 0) << "degree " << spec.tensor_parallel;
  auto matrix = std::make_unique<CpuPackedMatrix>();
  const HostMatrix& first = spec.parts[0];
  matrix->k_ = spec.transposed ? first.rows : first.cols;
  for (const HostMatrix& part : spec.parts) matrix->n_ += spec.transposed ? part.cols : part.rows;
  matrix->dtype_ = first.dtype;
  matrix->chains_ = spec.row_parallel ? kVirtualShards / spec.tensor_parallel : 1;
  MR_ASSIGN_OR_RETURN(matrix->memory_,
                      arena.Allocate(SaturatingProduct(matrix->panels(), matrix->panel_bytes()),
                                     "a packed weight"));
  CpuPackedMatrix& m = *matrix;
  pool.ParallelFor(m.panels(), 4, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      void* panel = const_cast<uint8_t*>(m.panel(i));
      if (m.dtype_ == DType::kF32) {
        PackPanel<uint32_t>(spec, m.dtype_, m.n_, m.k_, i * kPanelWidth, panel);
      } else {
        PackPanel<uint16_t>(spec, m.dtype_, m.n_, m.k_, i * kPanelWidth, panel);
      }
    }
  });
  return matrix;
}

}  // namespace millrace::tensor
