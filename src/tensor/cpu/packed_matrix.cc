#include "tensor/cpu/packed_matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tensor/cpu/gemm.h"

namespace millrace::tensor {
namespace {

// Where output j's values are in the file: value i is at data + i * step.
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

// Packs values [k_begin, k_end) of one lane; `to` is the lane's position in the pack of k = 0.
template <typename T>
void CopyLane(const Source<T>& from, int k_begin, int k_end, T* to) {
  for (int k = k_begin; k < k_end; ++k) to[k * size_t{kPanelWidth}] = from.data[k * from.step];
}

// The same for the two lanes that share 32-bit words: one store instead of two.
void CopyLanePair(const Source<uint16_t>& low, const Source<uint16_t>& high, int k_begin, int k_end,
                  uint32_t* to) {
  for (int k = k_begin; k < k_end; ++k) {
    to[k * size_t{kPanelWidth / 2}] = low.data[k * low.step] | uint32_t{high.data[k * high.step]}
                                                                   << 16;
  }
}

// Panel [k][32] of the outputs from `first` on, in storage type.
template <typename T>
void PackPanel(const PackSpec& spec, int n, int k, int first, void* panel) {
  // Zeros for lanes beyond the last output: step 0.
  static constexpr T kZero = 0;
  Source<T> sources[kPanelWidth];
  for (int j = 0; j < kPanelWidth; ++j) {
    sources[j] = first + j < n ? FindSource<T>(spec, first + j) : Source<T>{&kZero, 0};
  }
  // A block is as many k as keep both sides in L1: file rows are read in runs of several lines;
  // columns share their lines with the neighbouring lanes.
  const int block = spec.transposed ? 8 : 128;
  for (int k_begin = 0; k_begin < k; k_begin += block) {
    const int k_end = std::min(k, k_begin + block);
    for (int j = 0; j < kPanelWidth; ++j) {
      if constexpr (sizeof(T) == 2) {
        if (spec.parts[0].dtype == DType::kBF16) {
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
          fmt::format("a weight is [{}, {}]: it must not be empty", part.rows, part.cols));
    }
    if (part_k != k || part.dtype != first.dtype) {
      return InvalidArgument(fmt::format("parts of one weight differ: {} inputs of {} and {} of {}",
                                         k, DTypeName(first.dtype), part_k, DTypeName(part.dtype)));
    }
  }
  return OkStatus();
}

PanelFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return PanelFormat::kF32;
    case DType::kBF16: return PanelFormat::kBF16;
    case DType::kF16: return PanelFormat::kF16;
  }
  return PanelFormat::kF32;
}

constexpr size_t kGroupPackWords = kShortGroup * kShortLanes;  // of a group kept aside
// A weight is shortened when at most one in kGroupsPerAside groups would be kept aside...
constexpr int kGroupsPerAside = 8;
// ...in this many panels, which are sampled first.
constexpr int kPanelsLookedAt = 2;

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
  matrix->format_ = FormatOf(first.dtype);
  matrix->chains_ = spec.row_parallel ? kVirtualShards / spec.tensor_parallel : 1;
  if (matrix->CanBeShort() && matrix->IsWorthShortening(spec)) {
    matrix->format_ = PanelFormat::kShortBF16;
    MR_RETURN_IF_ERROR(matrix->PackShort(spec, arena, pool));
  } else {
    MR_RETURN_IF_ERROR(matrix->PackPlain(spec, arena, pool));
  }
  return matrix;
}

size_t CpuPackedMatrix::panel_bytes() const {
  const auto k = static_cast<size_t>(k_);
  switch (format_) {
    case PanelFormat::kF32: return k * kPanelWidth * sizeof(float);
    case PanelFormat::kBF16:
    case PanelFormat::kF16: return k * kPanelWidth * sizeof(uint16_t);
    case PanelFormat::kShortBF16:
      return (kShortBases + k / kShortGroup * kShortGroupWords) * sizeof(uint32_t);
  }
  return 0;
}

size_t CpuPackedMatrix::bytes() const {
  size_t asides = 0;
  if (format_ == PanelFormat::kShortBF16) asides = aside_groups_.size() - panels();
  return panels() * panel_bytes() + asides * kGroupPackWords * sizeof(uint32_t);
}

Asides CpuPackedMatrix::asides(int panel) const {
  const auto i = static_cast<size_t>(panel);
  const size_t begin = aside_begin_[i], end = aside_begin_[i + 1];
  const size_t before = begin - i;  // groups of the preceding panels, without their end markers
  return {std::span(aside_groups_).subspan(begin, end - begin),
          static_cast<const uint16_t*>(aside_packs_.data) + before * 2 * kGroupPackWords};
}

// Chains are whole groups, so that a product may start with any of them.
bool CpuPackedMatrix::CanBeShort() const {
  if (format_ != PanelFormat::kBF16 || !GemmReadsShortBF16()) return false;
  for (int i = 0; i <= chains_; ++i) {
    if (ChainStart(i) % kShortGroup != 0) return false;
  }
  return true;
}

bool CpuPackedMatrix::IsWorthShortening(const PackSpec& spec) const {
  std::vector<uint32_t> packs(k_ * kShortLanes);
  uint32_t bases[kShortBases], words[kShortGroupWords];
  int groups = 0, aside = 0;
  for (int i = 0; i < kPanelsLookedAt; ++i) {
    const int panel = static_cast<int>(int64_t{panels()} * i / kPanelsLookedAt);
    PackPanel<uint16_t>(spec, n_, k_, panel * kPanelWidth, packs.data());
    ChooseShortBases(packs.data(), k_, bases);
    for (int g = 0; g < k_ / kShortGroup; ++g, ++groups) {
      aside += !EncodeShortGroup(&packs[g * kGroupPackWords], bases, words);
    }
  }
  return aside * kGroupsPerAside <= groups;
}

Status CpuPackedMatrix::PackPlain(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool) {
  MR_ASSIGN_OR_RETURN(
      memory_, arena.Allocate(SaturatingProduct(panels(), panel_bytes()), "a packed weight"));
  pool.ParallelFor(panels(), 4, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      void* to = const_cast<uint8_t*>(panel(i));
      if (format_ == PanelFormat::kF32) {
        PackPanel<uint32_t>(spec, n_, k_, i * kPanelWidth, to);
      } else {
        PackPanel<uint16_t>(spec, n_, k_, i * kPanelWidth, to);
      }
    }
  });
  return OkStatus();
}

Status CpuPackedMatrix::PackShort(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool) {
  MR_ASSIGN_OR_RETURN(
      memory_, arena.Allocate(SaturatingProduct(panels(), panel_bytes()), "a packed weight"));
  std::vector<PanelAsides> asides(static_cast<size_t>(panels()));
  pool.ParallelFor(panels(), 4, [&](int begin, int end, int) {
    std::vector<uint32_t> packs(k_ * kShortLanes);
    for (int i = begin; i < end; ++i) {
      PackPanel<uint16_t>(spec, n_, k_, i * kPanelWidth, packs.data());
      Shorten(i, packs.data(), asides[static_cast<size_t>(i)]);
    }
  });
  return KeepAsides(asides, arena);
}

void CpuPackedMatrix::Shorten(int i, const uint32_t* packs, PanelAsides& asides) {
  auto* bases = reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(panel(i)));
  ChooseShortBases(packs, k_, bases);
  uint32_t* words = bases + kShortBases;
  for (int g = 0; g < k_ / kShortGroup; ++g, packs += kGroupPackWords, words += kShortGroupWords) {
    if (EncodeShortGroup(packs, bases, words)) continue;
    asides.groups.push_back(static_cast<uint32_t>(g));
    asides.packs.insert(asides.packs.end(), packs, packs + kGroupPackWords);
  }
}

Status CpuPackedMatrix::KeepAsides(std::span<const PanelAsides> asides, MemoryArena& arena) {
  size_t words = 0;
  for (const PanelAsides& of : asides) {
    aside_begin_.push_back(aside_groups_.size());
    aside_groups_.insert(aside_groups_.end(), of.groups.begin(), of.groups.end());
    aside_groups_.push_back(kNoGroup);
    words += of.packs.size();
  }
  aside_begin_.push_back(aside_groups_.size());
  if (words == 0) return OkStatus();
  MR_ASSIGN_OR_RETURN(aside_packs_, arena.Allocate(words * sizeof(uint32_t), "a packed weight"));
  auto* to = static_cast<uint32_t*>(aside_packs_.data);
  for (const PanelAsides& of : asides) to = std::copy(of.packs.begin(), of.packs.end(), to);
  return OkStatus();
}

}  // namespace millrace::tensor
