#include "tensor/cpu/kv_box.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/kv_box.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace {

enum class Way { kExport, kImport };

// Copies one number between the pool and the dense bytes.
template <Way way, typename T>
HWY_INLINE void Move(T* stored, std::byte* dense) {
  if constexpr (way == Way::kExport) {
    std::memcpy(dense, stored, sizeof(T));
  } else {
    std::memcpy(stored, dense, sizeof(T));
  }
}

// Transposes a square with as many rows as a 128-bit vector has lanes: a row at `from` becomes a
// column at `to`. Strides in lanes.
template <typename Lane>
HWY_INLINE void TransposeSquare(const Lane* from, size_t from_stride, Lane* to, size_t to_stride) {
  constexpr size_t kSide = 16 / sizeof(Lane);
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < kSide * kSide; ++i) {
    std::memcpy(to + i % kSide * to_stride + i / kSide, from + i / kSide * from_stride + i % kSide,
                sizeof(Lane));
  }
#else
  const hn::Full128<Lane> d;
  hn::Vec<decltype(d)> rows[kSide], next[kSide];
  for (size_t i = 0; i < kSide; ++i) rows[i] = hn::LoadU(d, from + i * from_stride);
  for (size_t side = kSide; side > 1; side /= 2) {  // perfect shuffles
    for (size_t i = 0; i < kSide / 2; ++i) {
      next[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + kSide / 2]);
      next[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + kSide / 2]);
    }
    for (size_t i = 0; i < kSide; ++i) rows[i] = next[i];
  }
  for (size_t i = 0; i < kSide; ++i) hn::StoreU(rows[i], d, to + i * to_stride);
#endif
}

// The unit of transposing keys. A bf16 pack keeps two dimensions of a token side by side, as the
// dense form does.
template <class Stored>
using KeyLane = std::conditional_t<Stored::kDType == DType::kF16, uint16_t, uint32_t>;

// Moves a whole run of tokens; returns how many dimensions it moved. The caller moves the rest.
template <Way way, class Stored>
int MoveKeySquares(int head_dim, typename Stored::T* run, std::byte* dense) {
  using Lane = KeyLane<Stored>;
  constexpr size_t kSide = 16 / sizeof(Lane);
  constexpr int kPerLane = sizeof(Lane) / BytesOf(Stored::kDType);
  const size_t row_bytes = sizeof(typename Stored::T) * head_dim;
  if (row_bytes % sizeof(Lane) != 0) return 0;  // rows are not aligned to units
  const size_t row = row_bytes / sizeof(Lane), columns = row / kSide * kSide;
  auto* packed = reinterpret_cast<Lane*>(run);
  auto* rows = reinterpret_cast<Lane*>(dense);
  for (size_t token = 0; token < kKeyRun; token += kSide) {
    for (size_t c = 0; c < columns; c += kSide) {
      Lane* at = packed + c * kKeyRun + token;
      if constexpr (way == Way::kExport) {
        TransposeSquare(at, kKeyRun, rows + token * row + c, row);
      } else {
        TransposeSquare(rows + token * row + c, row, at, kKeyRun);
      }
    }
  }
  return static_cast<int>(columns) * kPerLane;
}

// Tokens [first, end) of a run; dense: [end - first][head_dim].
template <Way way, class Stored>
void MoveKeys(int head_dim, typename Stored::T* run, int first, int end, std::byte* dense) {
  using T = typename Stored::T;
  int dim = 0;
  if (first == 0 && end == kKeyRun) dim = MoveKeySquares<way, Stored>(head_dim, run, dense);
  for (; dim < head_dim; ++dim) {
    T* pack = run + dim / 2 * kPack;
    for (int token = first; token < end; ++token) {
      Move<way>(pack + Stored::Index(dim % 2 * kHalfPack + token),
                dense + sizeof(T) * (static_cast<size_t>(token - first) * head_dim + dim));
    }
  }
}

// A bf16 pack of values: 16 dimensions of two tokens side by side.
template <Way way>
HWY_INLINE void MoveValuePack(uint16_t* pack, std::byte* dense_even, std::byte* dense_odd) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t j = 0; j < kHalfPack; ++j) {
    Move<way>(pack + 2 * j, dense_even + j * sizeof(uint16_t));
    Move<way>(pack + 2 * j + 1, dense_odd + j * sizeof(uint16_t));
  }
#else
  const hn::Full128<uint16_t> d;
  auto* even = reinterpret_cast<uint16_t*>(dense_even);
  auto* odd = reinterpret_cast<uint16_t*>(dense_odd);
  for (size_t j = 0; j < kHalfPack; j += 8) {
    if constexpr (way == Way::kExport) {
      const auto first = hn::LoadU(d, pack + 2 * j), second = hn::LoadU(d, pack + 2 * j + 8);
      hn::StoreU(hn::ConcatEven(d, second, first), d, even + j);
      hn::StoreU(hn::ConcatOdd(d, second, first), d, odd + j);
    } else {
      const auto low = hn::LoadU(d, even + j), high = hn::LoadU(d, odd + j);
      hn::StoreU(hn::InterleaveLower(d, low, high), d, pack + 2 * j);
      hn::StoreU(hn::InterleaveUpper(d, low, high), d, pack + 2 * j + 8);
    }
  }
#endif
}

// The values of tokens [first, end) of a run; dense: [end - first][head_dim]. A token alone moves
// number by number, because the other one of its words may be in use.
template <Way way>
void MoveValuePairs(int head_dim, uint16_t* run, int first, int end, std::byte* dense) {
  const size_t row = sizeof(uint16_t) * head_dim;
  for (int token = first; token < end;) {
    const bool pair = token % 2 == 0 && token + 1 < end;
    uint16_t* words = run + static_cast<size_t>(token / 2) * kPack;
    std::byte* even = dense + row * (token - first);
    int dim = 0;
    for (; pair && dim + static_cast<int>(kHalfPack) <= head_dim; dim += kHalfPack) {
      std::byte* at = even + sizeof(uint16_t) * dim;
      MoveValuePack<way>(words + dim * kKeyRun, at, at + row);
    }
    for (int t = token; t < token + 1 + pair; ++t) {
      for (int i = dim; i < head_dim; ++i) {
        Move<way>(words + i / kHalfPack * kKeyRun * kHalfPack + 2 * (i % kHalfPack) + t % 2,
                  dense + row * (t - first) + sizeof(uint16_t) * i);
      }
    }
    token += 1 + pair;
  }
}

// The same where a token's values are in one piece of `value_dim` numbers.
template <Way way, typename T>
void MoveValues(int head_dim, int value_dim, T* run, int first, int end, std::byte* dense) {
  const size_t row = sizeof(T) * head_dim;
  for (int token = first; token < end; ++token, dense += row) {
    T* value = run + static_cast<size_t>(token) * value_dim;
    if constexpr (way == Way::kExport) {
      std::memcpy(dense, value, row);
    } else {
      std::memcpy(value, dense, row);
    }
  }
}

template <Way way>
void MoveHead(const KvHeadSpan& span, std::byte* keys, std::byte* values) {
  const KvShape& shape = span.pool->shape();
  const int head_dim = shape.head_dim, pairs = (head_dim + 1) / 2;
  WithStored(shape.dtype, [&](auto stored) {
    using Stored = decltype(stored);
    using T = typename Stored::T;
    for (int token = span.first_token; token < span.end_token;) {
      const BlockIndex block = span.blocks[token / shape.block_size];
      const int in_block = token % shape.block_size, first = in_block % kKeyRun;
      const int end = std::min(kKeyRun, first + span.end_token - token);
      T* run = reinterpret_cast<T*>(span.pool->keys(span.layer, block, span.kv_head)) +
               static_cast<size_t>(in_block / kKeyRun) * pairs * kPack;
      T* value_run = reinterpret_cast<T*>(span.pool->values(span.layer, block, span.kv_head)) +
                     static_cast<size_t>(in_block - first) * span.pool->value_dim();
      const size_t at = sizeof(T) * head_dim * (token - span.first_token);
      MoveKeys<way, Stored>(head_dim, run, first, end, keys + at);
      if constexpr (Stored::kDType == DType::kBF16) {
        MoveValuePairs<way>(head_dim, value_run, first, end, values + at);
      } else {
        MoveValues<way>(head_dim, span.pool->value_dim(), value_run, first, end, values + at);
      }
      token += end - first;
    }
  });
}

void Export(const KvHeadSpan& span, std::byte* keys, std::byte* values) {
  MoveHead<Way::kExport>(span, keys, values);
}

void Import(const KvHeadSpan& span, const std::byte* keys, const std::byte* values) {
  MoveHead<Way::kImport>(span, const_cast<std::byte*>(keys), const_cast<std::byte*>(values));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::tensor {

HWY_EXPORT(Export);
HWY_EXPORT(Import);

void ExportKvHead(const KvHeadSpan& span, std::byte* keys, std::byte* values) {
  HWY_DYNAMIC_DISPATCH(Export)(span, keys, values);
}

void ImportKvHead(const KvHeadSpan& span, const std::byte* keys, const std::byte* values) {
  HWY_DYNAMIC_DISPATCH(Import)(span, keys, values);
}

}  // namespace millrace::tensor
#endif
