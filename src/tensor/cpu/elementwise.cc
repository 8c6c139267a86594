#include "tensor/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/cpu/lanes-inl.h"
#include "tensor/cpu/math-inl.h"
#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace {

const float* Row(const Rows& x, int r) {
  return static_cast<const float*>(x.data) + static_cast<size_t>(r) * x.stride;
}
float* MutableRow(const Rows& x, int r) { return const_cast<float*>(Row(x, r)); }

// The last, incomplete vector of a row, padded with zeros.
HWY_INLINE VF LoadPart(DF d, const float* from, size_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(DF())] = {};
  std::copy_n(from, count, lanes);
  return hn::Load(d, lanes);
}

HWY_INLINE void StorePart(DF d, VF x, float* to, size_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(DF())];
  hn::Store(x, d, lanes);
  std::copy_n(lanes, count, to);
}

// y[i] = f(x1[i], x2[i], ...) for i < count. An output may be an input.
template <typename F, typename... Input>
HWY_INLINE void Map(size_t count, F f, float* y, const Input*... inputs) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(hn::LoadU(d, inputs + i)...), d, y + i);
  if (i < count) StorePart(d, f(LoadPart(d, inputs + i, count - i)...), y + i, count - i);
}

// Sum of f(x[i]), in runs of 16 numbers: four sums of every fourth run, added pairwise, then over
// the lanes. Runs after the last four go to the first sum, an incomplete one to the second. Lanes
// beyond the end are masked out, so f(0) may be anything that does not trap.
template <typename F>
HWY_INLINE float Sum(const float* x, size_t count, F f) {
  const DF d;
  constexpr size_t kLanes = hn::MaxLanes(DF());
  Lanes sums[4] = {Lanes::Of(0.0f), Lanes::Of(0.0f), Lanes::Of(0.0f), Lanes::Of(0.0f)};
  const auto add_run = [&](Lanes& sum, const float* run) {
    for (size_t v = 0; v < kLaneVectors; ++v) {
      sum.vectors[v] = f(sum.vectors[v], hn::LoadU(d, run + v * kLanes));
    }
  };
  size_t i = 0;
  for (; i + 4 * kVirtualLanes <= count; i += 4 * kVirtualLanes) {
    for (size_t s = 0; s < 4; ++s) add_run(sums[s], x + i + s * kVirtualLanes);
  }
  for (; i + kVirtualLanes <= count; i += kVirtualLanes) add_run(sums[0], x + i);
  for (VF& sum : sums[1].vectors) {
    const size_t left = std::min(count - i, kLanes);
    if (left == 0) break;
    sum = hn::IfThenElse(hn::FirstN(d, left), f(sum, LoadPart(d, x + i, left)), sum);
    i += left;
  }
  for (size_t v = 0; v < kLaneVectors; ++v) {
    sums[0].vectors[v] = hn::Add(hn::Add(sums[0].vectors[v], sums[1].vectors[v]),
                                 hn::Add(sums[2].vectors[v], sums[3].vectors[v]));
  }
  return sums[0].Sum();
}

void Round(Rows x, Rows y) {
  for (int r = 0; r < x.rows; ++r) {
    auto* to = static_cast<uint16_t*>(y.data) + static_cast<size_t>(r) * y.stride;
    RoundNumbers(Row(x, r), static_cast<size_t>(x.cols), to);
  }
}

// What a row of norms is multiplied with.
VF NormScale(float squares, size_t n, float epsilon) {
  return hn::Set(DF(), 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon));
}

HWY_INLINE VF AddSquare(VF sum, VF v) {
  const VF factor = FactorOf(v);
  return hn::MulAdd(factor, factor, sum);
}

void RmsNorm(Rows x, const float* weight, float epsilon, Rows y) {
  const size_t n = x.cols;
  for (int r = 0; r < x.rows; ++r) {
    const float squares = Sum(Row(x, r), n, AddSquare);
    const VF scale = NormScale(squares, n, epsilon);
    Map(
        n, [&](VF v, VF w) { return hn::Mul(FactorOf(hn::Mul(v, scale)), w); }, MutableRow(y, r),
        Row(x, r), weight);
  }
}

void LayerNorm(Rows x, const float* weight, const float* bias, float epsilon, Rows y) {
  const DF d;
  const size_t n = x.cols;
  for (int r = 0; r < x.rows; ++r) {
    const float* row = Row(x, r);
    const float sum = Sum(row, n, [](VF all, VF v) { return hn::Add(all, v); });
    const VF mean = hn::Set(d, tensor::FactorOf(sum / static_cast<float>(n)));
    const float squares =
        Sum(row, n, [&](VF all, VF v) { return AddSquare(all, hn::Sub(v, mean)); });
    const VF scale = NormScale(squares, n, epsilon);
    const auto norm = [&](VF v, VF w) {
      return hn::Mul(FactorOf(hn::Mul(hn::Sub(v, mean), scale)), w);
    };
    if (bias == nullptr) {
      Map(n, norm, MutableRow(y, r), row, weight);
    } else {
      Map(
          n, [&](VF v, VF w, VF b) { return hn::Add(norm(v, w), b); }, MutableRow(y, r), row,
          weight, bias);
    }
  }
}

void Rope(Rows x, int head_dim, const int32_t* positions, const RopeAngles& table) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t half = table.rotary_dim / 2;
  for (int r = 0; r < x.rows; ++r) {
    const float* cos = table.cos + positions[r] * half;
    const float* sin = table.sin + positions[r] * half;
    for (int head = 0; head < x.cols; head += head_dim) {
      float* first = MutableRow(x, r) + head;
      float* second = first + half;
      const auto turn = [&](VF x, VF y, VF cosine, VF sine, VF& new_x, VF& new_y) {
        const VF a = FactorOf(x), b = FactorOf(y), c = FactorOf(cosine), s = FactorOf(sine);
        new_x = FactorOf(hn::NegMulAdd(b, s, hn::Mul(a, c)));
        new_y = FactorOf(hn::MulAdd(a, s, hn::Mul(b, c)));
      };
      VF a, b;
      size_t i = 0;
      for (; i + lanes <= half; i += lanes) {
        turn(hn::LoadU(d, first + i), hn::LoadU(d, second + i), hn::LoadU(d, cos + i),
             hn::LoadU(d, sin + i), a, b);
        hn::StoreU(a, d, first + i);
        hn::StoreU(b, d, second + i);
      }
      if (const size_t left = half - i; left > 0) {
        turn(LoadPart(d, first + i, left), LoadPart(d, second + i, left),
             LoadPart(d, cos + i, left), LoadPart(d, sin + i, left), a, b);
        StorePart(d, a, first + i, left);
        StorePart(d, b, second + i, left);
      }
    }
  }
}

void Activate(Rows x, Activation activation, Rows y) {
  WithActivation(DF(), activation, [&](auto f) {
    for (int r = 0; r < x.rows; ++r) Map(x.cols, f, MutableRow(y, r), Row(x, r));
  });
}

void GatedActivate(Rows gate, Rows up, Activation activation, Rows y) {
  WithActivation(DF(), activation, [&](auto f) {
    const auto gated = [&](VF g, VF u) { return hn::Mul(f(g), u); };
    for (int r = 0; r < gate.rows; ++r) {
      Map(gate.cols, gated, MutableRow(y, r), Row(gate, r), Row(up, r));
    }
  });
}

void AddTo(Rows x, Rows y) {
  for (int r = 0; r < x.rows; ++r) {
    Map(
        x.cols, [](VF a, VF b) { return hn::Add(a, b); }, MutableRow(y, r), Row(y, r), Row(x, r));
  }
}

// The same order of additions as at the end of a product (gemm.cc).
void Finish(Rows x, const float* bias, Rows residual, Rows y) {
  const auto add = [](VF a, VF b) { return hn::Add(a, b); };
  for (int r = 0; r < x.rows; ++r) {
    const float* from = Row(x, r);
    float* to = MutableRow(y, r);
    if (bias != nullptr && residual.data != nullptr) {
      const auto add_both = [](VF a, VF b, VF c) { return hn::Add(hn::Add(a, b), c); };
      Map(x.cols, add_both, to, from, bias, Row(residual, r));
    } else if (residual.data != nullptr) {
      Map(x.cols, add, to, from, Row(residual, r));
    } else if (bias != nullptr) {
      Map(x.cols, add, to, from, bias);
    } else if (to != from) {
      std::copy_n(from, x.cols, to);
    }
  }
}

void ExpOfRow(const float* x, size_t count, float top, float scale, float* y) {
  const DF d;
  const float per_unit = std::min(scale * kLog2E, std::numeric_limits<float>::max());
  const VF subtract = hn::Set(d, top), multiply = hn::Set(d, per_unit);
  Map(
      count, [&](VF v) { return PowerOfTwo(d, hn::Mul(hn::Sub(v, subtract), multiply)); }, y, x);
}

template <class Stored>
HWY_INLINE VF LoadStored(DF d, const typename Stored::T* from) {
  if constexpr (Stored::kDType == DType::kF32) {
    return hn::LoadU(d, from);
  } else if constexpr (Stored::kDType == DType::kF16) {
    return Stored::LoadHalf(d, from);
  } else {
    const DU du;
    const hn::Rebind<uint16_t, DF> dh;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
  }
}

template <class Stored>
void EmbedStored(const HostMatrix& table, const int32_t* ids, Rows y, bool add) {
  using T = typename Stored::T;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t n = y.cols;
  for (int r = 0; r < y.rows; ++r) {
    const T* from =
        static_cast<const T*>(table.data) + static_cast<size_t>(ids[r]) * table.Stride();
    float* to = MutableRow(y, r);
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      const VF v = FactorOf(LoadStored<Stored>(d, from + i));
      hn::StoreU(add ? hn::Add(hn::LoadU(d, to + i), v) : v, d, to + i);
    }
    if (i < n) {
      // The table is a mapped file: do not read beyond its end.
      T part[hn::MaxLanes(DF())] = {};
      std::copy_n(from + i, n - i, part);
      const VF v = FactorOf(LoadStored<Stored>(d, part));
      StorePart(d, add ? hn::Add(LoadPart(d, to + i, n - i), v) : v, to + i, n - i);
    }
  }
}

void Embed(const HostMatrix& table, const int32_t* ids, Rows y, bool add) {
  WithStored(table.dtype, [&](auto stored) { EmbedStored<decltype(stored)>(table, ids, y, add); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::tensor {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(Round);
HWY_EXPORT(LayerNorm);
HWY_EXPORT(Rope);
HWY_EXPORT(Activate);
HWY_EXPORT(GatedActivate);
HWY_EXPORT(AddTo);
HWY_EXPORT(Finish);
HWY_EXPORT(ExpOfRow);
HWY_EXPORT(Embed);

void RoundRows(Rows x, Rows y) { HWY_DYNAMIC_DISPATCH(Round)(x, y); }

void RmsNormRows(Rows x, const float* weight, float epsilon, Rows y) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, epsilon, y);
}

void LayerNormRows(Rows x, const float* weight, const float* bias, float epsilon, Rows y) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(x, weight, bias, epsilon, y);
}

void RopeRows(Rows x, int head_dim, const int32_t* positions, const RopeAngles& table) {
  HWY_DYNAMIC_DISPATCH(Rope)(x, head_dim, positions, table);
}

void ActivateRows(Rows x, Activation f, Rows y) { HWY_DYNAMIC_DISPATCH(Activate)(x, f, y); }

void GatedActivateRows(Rows gate, Rows up, Activation f, Rows y) {
  HWY_DYNAMIC_DISPATCH(GatedActivate)(gate, up, f, y);
}

void FinishRows(Rows x, const float* bias, Rows residual, Rows y) {
  HWY_DYNAMIC_DISPATCH(Finish)(x, bias, residual, y);
}

void AddRows(Rows x, Rows y) { HWY_DYNAMIC_DISPATCH(AddTo)(x, y); }

void ExpRow(std::span<const float> x, float top, float scale, float* y) {
  HWY_DYNAMIC_DISPATCH(ExpOfRow)(x.data(), x.size(), top, scale, y);
}

void EmbedRows(const HostMatrix& table, const int32_t* ids, Rows y, bool add) {
  HWY_DYNAMIC_DISPATCH(Embed)(table, ids, y, add);
}

}  // namespace millrace::tensor
#endif
