#include "tensor/cpu/packed_matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tensor/cpu/float16.h"
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

// The outputs of a panel; lanes beyond the last output read zeros, with step 0.
template <typename T>
std::array<Source<T>, kPanelWidth> SourcesOf(const PackSpec& spec, int n, int first) {
  static constexpr T kZero = 0;
  std::array<Source<T>, kPanelWidth> sources;
  for (int j = 0; j < kPanelWidth; ++j) {
    const int output = first + j;
    sources[j] = output < n ? FindSource<T>(spec, output) : Source<T>{&kZero, 0};
  }
  return sources;
}

// Calls piece(begin, end) for as many k at a time as keep both sides in L1: file rows are read in
// runs of several lines; columns share their lines with the neighbouring lanes.
template <typename Piece>
void ForPieces(const PackSpec& spec, int k_begin, int k_end, Piece piece) {
  const int step = spec.transposed ? kBlockK : 4 * kBlockK;
  for (int k = k_begin; k < k_end; k += step) piece(k, std::min(k_end, k + step));
}

// Values [begin, end) of one output as pairs; `to` is the place of its first pair, at the start of
// a block.
void CopyPairs(const Source<uint16_t>& from, int begin, int end, uint32_t* to) {
  const auto pair_at = [&](int k) {
    const size_t at = static_cast<size_t>(k) * from.step;
    return from.data[at] | uint32_t{from.data[at + from.step]} << 16;
  };
  for (; begin < end; begin += kBlockK, to += 2 * kUnitPairs * kUnitLanes) {
    const int pairs = std::min(kUnitPairs, (end - begin) / 2);
    for (int i = 0; i < pairs; ++i) to[i * kUnitLanes] = pair_at(begin + 2 * i);
    const int last = begin + 2 * pairs;
    if (pairs < kUnitPairs && last < end) {
      to[pairs * kUnitLanes] = from.data[static_cast<size_t>(last) * from.step];
    }
  }
}

// Leaves of pairs what counts as factors.
void DropSmall(uint32_t* pairs, size_t count) {
  auto* numbers = reinterpret_cast<uint16_t*>(pairs);
  for (size_t i = 0; i < 2 * count; ++i) numbers[i] = BF16FactorOf(numbers[i]);
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

constexpr size_t kGroupWords = kShortGroup * kUnitLanes;  // of a group kept aside
// The bases of group g's 16 outputs: the units of a block take turns.
const uint32_t* BasesOfGroup(const uint32_t* bases, int g) {
  return bases + static_cast<size_t>(g / (kUnitPairs / kShortGroup) % 2) * kUnitLanes;
}

// A weight is shortened when at most one in kGroupsPerAside groups would be kept aside...
constexpr int kGroupsPerAside = 8;
// ...in this many panels, which are sampled first.
constexpr int kPanelsLookedAt = 2;

}  // namespace

Result<std::unique_ptr<CpuPackedMatrix>> CpuPackedMatrix::Pack(const PackSpec& spec,
                                                               MemoryArena& arena, ThreadPool& pool,
                                                               DType block_input) {
  MR_RETURN_IF_ERROR(CheckParts(spec));
  MR_CHECK(kVirtualShards % spec.tensor_parallel == 0) << "degree " << spec.tensor_parallel;
  auto matrix = std::make_unique<CpuPackedMatrix>();
  const HostMatrix& first = spec.parts[0];
  matrix->k_ = spec.transposed ? first.rows : first.cols;
  for (const HostMatrix& part : spec.parts) matrix->n_ += spec.transposed ? part.cols : part.rows;
  matrix->format_ = FormatOf(first.dtype);
  matrix->block_input_ = block_input;
  matrix->chains_ = spec.row_parallel ? kVirtualShards / spec.tensor_parallel : 1;
  matrix->alternates_ = spec.gated && matrix->n_ % (2 * kPanelWidth) == 0;
  matrix->SetPackedStarts();
  if (matrix->CanBeShort() && matrix->IsWorthShortening(spec)) {
    matrix->format_ = PanelFormat::kShortBF16;
    MR_RETURN_IF_ERROR(matrix->PackShort(spec, arena, pool));
  } else {
    MR_RETURN_IF_ERROR(matrix->PackPlain(spec, arena, pool));
  }
  return matrix;
}

void CpuPackedMatrix::SetPackedStarts() {
  for (int i = 0; i < chains_; ++i) {
    const int k = ChainStart(i + 1) - ChainStart(i);
    packed_starts_[i + 1] =
        packed_starts_[i] + (in_blocks() ? (k + kBlockK - 1) / kBlockK * kBlockK : k);
  }
}

void CpuPackedMatrix::PackPanel(const PackSpec& spec, int i, void* panel) const {
  switch (format_) {
    case PanelFormat::kF32: return PackPlainPanel(spec, i, static_cast<uint32_t*>(panel));
    case PanelFormat::kF16: return PackPlainPanel(spec, i, static_cast<uint16_t*>(panel));
    case PanelFormat::kBF16:
    case PanelFormat::kShortBF16: return PackBlockPanel(spec, i, static_cast<uint32_t*>(panel));
  }
}

template <typename T>
void CpuPackedMatrix::PackPlainPanel(const PackSpec& spec, int i, T* panel) const {
  const auto sources = SourcesOf<T>(spec, n_, FirstOutput(i));
  ForPieces(spec, 0, k_, [&](int begin, int end) {
    for (int j = 0; j < kPanelWidth; ++j) {
      T* to = panel + static_cast<size_t>(begin) * kPanelWidth + j;
      for (int k = begin; k < end; ++k, to += kPanelWidth) {
        *to = sources[j].data[k * sources[j].step];
      }
    }
  });
}

void CpuPackedMatrix::PackBlockPanel(const PackSpec& spec, int i, uint32_t* panel) const {
  const auto sources = SourcesOf<uint16_t>(spec, n_, FirstOutput(i));
  for (int chain = 0; chain < chains_; ++chain) {
    const int start = ChainStart(chain), stop = ChainStart(chain + 1);
    uint32_t* to = panel + static_cast<size_t>(PackedStart(chain)) * kUnitLanes;
    if ((stop - start) % kBlockK != 0) {  // zeros after the last k
      const size_t last_block = static_cast<size_t>(PackedStart(chain + 1) - kBlockK) * kUnitLanes;
      std::fill_n(panel + last_block, kBlockK * kUnitLanes, 0);
    }
    ForPieces(spec, start, stop, [&](int begin, int end) {
      for (size_t j = 0; j < kPanelWidth; ++j) {
        const size_t unit = j / kUnitLanes;
        CopyPairs(sources[j], begin, end, to + unit * kUnitPairs * kUnitLanes + j % kUnitLanes);
      }
      const int blocks = (end - begin + kBlockK - 1) / kBlockK;
      DropSmall(to, static_cast<size_t>(blocks) * kBlockK * kUnitLanes);
      to += static_cast<size_t>(end - begin) * kUnitLanes;
    });
  }
}

size_t CpuPackedMatrix::panel_bytes() const {
  const auto k = static_cast<size_t>(packed_k());
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
  return panels() * panel_bytes() + asides * kGroupWords * sizeof(uint32_t);
}

Asides CpuPackedMatrix::asides(int panel) const {
  const auto i = static_cast<size_t>(panel);
  const size_t begin = aside_begin_[i], end = aside_begin_[i + 1];
  const size_t before = begin - i;  // groups of the preceding panels, without their end markers
  return {std::span(aside_groups_).subspan(begin, end - begin),
          static_cast<const uint32_t*>(aside_words_.data) + before * kGroupWords};
}

bool CpuPackedMatrix::CanBeShort() const {
  return format_ == PanelFormat::kBF16 && GemmReadsShortBF16();
}

bool CpuPackedMatrix::IsWorthShortening(const PackSpec& spec) const {
  std::vector<uint32_t> words(static_cast<size_t>(packed_k()) * kUnitLanes);
  uint32_t bases[kShortBases], group[kShortGroupWords];
  int groups = 0, aside = 0;
  for (int i = 0; i < kPanelsLookedAt; ++i) {
    const int panel = static_cast<int>(int64_t{panels()} * i / kPanelsLookedAt);
    PackPanel(spec, panel, words.data());
    ChooseShortBases(words.data(), packed_k(), bases);
    for (int g = 0; g < packed_k() / kShortGroup; ++g, ++groups) {
      aside += !EncodeShortGroup(&words[g * kGroupWords], BasesOfGroup(bases, g), group);
    }
  }
  return aside * kGroupsPerAside <= groups;
}

Status CpuPackedMatrix::PackPlain(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool) {
  MR_ASSIGN_OR_RETURN(
      memory_, arena.Allocate(SaturatingProduct(panels(), panel_bytes()), "a packed weight"));
  pool.ParallelFor(panels(), 4, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) PackPanel(spec, i, const_cast<uint8_t*>(panel(i)));
  });
  return OkStatus();
}

Status CpuPackedMatrix::PackShort(const PackSpec& spec, MemoryArena& arena, ThreadPool& pool) {
  MR_ASSIGN_OR_RETURN(
      memory_, arena.Allocate(SaturatingProduct(panels(), panel_bytes()), "a packed weight"));
  std::vector<PanelAsides> asides(static_cast<size_t>(panels()));
  pool.ParallelFor(panels(), 4, [&](int begin, int end, int) {
    std::vector<uint32_t> words(static_cast<size_t>(packed_k()) * kUnitLanes);
    for (int i = begin; i < end; ++i) {
      PackPanel(spec, i, words.data());
      Shorten(i, words.data(), asides[static_cast<size_t>(i)]);
    }
  });
  return KeepAsides(asides, arena);
}

void CpuPackedMatrix::Shorten(int i, const uint32_t* words, PanelAsides& asides) {
  auto* bases = reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(panel(i)));
  ChooseShortBases(words, packed_k(), bases);
  uint32_t* to = bases + kShortBases;
  for (int g = 0; g < packed_k() / kShortGroup; ++g, words += kGroupWords, to += kShortGroupWords) {
    if (EncodeShortGroup(words, BasesOfGroup(bases, g), to)) continue;
    asides.groups.push_back(static_cast<uint32_t>(g));
    asides.words.insert(asides.words.end(), words, words + kGroupWords);
  }
}

Status CpuPackedMatrix::KeepAsides(std::span<const PanelAsides> asides, MemoryArena& arena) {
  size_t words = 0;
  for (const PanelAsides& of : asides) {
    aside_begin_.push_back(aside_groups_.size());
    aside_groups_.insert(aside_groups_.end(), of.groups.begin(), of.groups.end());
    aside_groups_.push_back(kNoGroup);
    words += of.words.size();
  }
  aside_begin_.push_back(aside_groups_.size());
  if (words == 0) return OkStatus();
  MR_ASSIGN_OR_RETURN(aside_words_, arena.Allocate(words * sizeof(uint32_t), "a packed weight"));
  auto* to = static_cast<uint32_t*>(aside_words_.data);
  for (const PanelAsides& of : asides) to = std::copy(of.words.begin(), of.words.end(), to);
  return OkStatus();
}

}  // namespace millrace::tensor
