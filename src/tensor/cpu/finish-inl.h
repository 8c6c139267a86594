// The end of a product: from sums to outputs. Included once per target.
#if defined(MILLRACE_TENSOR_CPU_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_FINISH_INL_H_
#undef MILLRACE_TENSOR_CPU_FINISH_INL_H_
#else
#define MILLRACE_TENSOR_CPU_FINISH_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/math-inl.h"
#include "tensor/cpu/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {

// into += from, `count` floats, a multiple of 32.
inline void AddTile(const float* from, float* into, size_t count) {
  const DF d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, from + i), hn::LoadU(d, into + i)), d, into + i);
  }
}

// Writes one row's 32 sums of a panel to y: bias first, then the residual.
inline void FinishRow(const GemmCall& call, int row, int panel, const float* sums) {
  const DF d;
  const auto column = static_cast<size_t>(call.w->FirstOutput(panel));
  const size_t count = std::min<size_t>(kPanelWidth, call.y.cols - column);
  float* y = static_cast<float*>(call.y.data) + static_cast<size_t>(row) * call.y.stride + column;
  const float* residual = nullptr;
  if (call.residual.data != nullptr) {
    residual = static_cast<const float*>(call.residual.data) +
               static_cast<size_t>(row) * call.residual.stride + column;
  }
  HWY_ALIGN float edge_in[kPanelWidth], edge_out[kPanelWidth];
  const bool edge = count < kPanelWidth;
  if (edge && residual != nullptr) {
    std::fill(std::copy_n(residual, count, edge_in), edge_in + kPanelWidth, 0.0f);
    residual = edge_in;
  }
  float* to = edge ? edge_out : y;
  for (size_t j = 0; j < kPanelWidth; j += hn::Lanes(d)) {
    VF sum = hn::LoadU(d, sums + j);
    if (call.bias != nullptr) sum = hn::Add(sum, hn::LoadU(d, call.bias + column + j));
    if (residual != nullptr) sum = hn::Add(sum, hn::LoadU(d, residual + j));
    hn::StoreU(sum, d, to + j);
  }
  if (edge) std::copy_n(edge_out, count, y);
}

// The same for rows [first, first + count) of x, from the sums of their limbs.
inline void FinishRows(const GemmCall& call, int first, int count, int panel, float* sums) {
  for (int r = first; r < first + count; ++r, sums += call.limbs * kPack) {
    if (call.limbs == 2) AddTile(sums + kPack, sums, kPack);
    FinishRow(call, r, panel, sums);
  }
}

// The same where a panel of gates and the panel of what they gate give one panel of outputs:
// y = f(gate) * up, each with its bias. Panels are whole.
inline void FinishGatedRows(const GemmCall& call, int first, int count, int panel, float* gate,
                            float* up) {
  const DF d;
  const size_t column = size_t{kPanelWidth} * panel;
  const float* gate_bias = call.bias == nullptr ? nullptr : call.bias + column;
  const float* up_bias = gate_bias == nullptr ? nullptr : gate_bias + call.y.cols;
  const bool rounds = call.y.type == DType::kBF16;
  WithActivation(d, *call.gate, [&](auto f) {
    for (int r = first; r < first + count; ++r) {
      if (call.limbs == 2) {
        AddTile(gate + kPack, gate, kPack);
        AddTile(up + kPack, up, kPack);
      }
      const size_t at = static_cast<size_t>(r) * call.y.stride + column;
      for (size_t j = 0; j < kPack; j += hn::Lanes(d)) {
        VF g = hn::LoadU(d, gate + j), u = hn::LoadU(d, up + j);
        if (gate_bias != nullptr) {
          g = hn::Add(g, hn::LoadU(d, gate_bias + j));
          u = hn::Add(u, hn::LoadU(d, up_bias + j));
        }
        const VF y = hn::Mul(f(g), u);
        if (rounds) {
          StoredBF16::StoreHalf(d, y, static_cast<uint16_t*>(call.y.data) + at + j);
        } else {
          hn::StoreU(y, d, static_cast<float*>(call.y.data) + at + j);
        }
      }
      gate += call.limbs * kPack;
      up += call.limbs * kPack;
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
