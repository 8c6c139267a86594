// Vector functions in f32: exp and the activations built on it. Included once per target.
#if defined(MILLRACE_TENSOR_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_TENSOR_CPU_MATH_INL_H_
#undef MILLRACE_TENSOR_CPU_MATH_INL_H_
#else
#define MILLRACE_TENSOR_CPU_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include "tensor/device.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
inline constexpr float kNearestInteger = 12582912.0f;
inline constexpr float kLog2E = 1.44269504088896341f;

// y 2^n, where `shifted` is n + kNearestInteger.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Scaled(D d, V y, V shifted) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// 2^x for |x| <= 0.5, and 1 for 0: the best polynomial of degree 5, 9.2e-8 off before rounding.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOfRest(D d, V x) {
  V p = hn::Set(d, 0x1.5bba14p-10f);
  p = hn::MulAdd(p, x, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, x, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, x, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, x, hn::Set(d, 0x1.62e42ap-1f));
  return hn::MulAdd(p, x, hn::Set(d, 1.0f));
}

// e^x in an activation: x is taken as at least -41, where nothing of e^x is left in the result, and
// at most 88.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const V magic = hn::Set(d, kNearestInteger), log2e = hn::Set(d, kLog2E);
  const V near = hn::Min(hn::Max(x, hn::Set(d, -41.0f)), hn::Set(d, 88.0f));
  const V shifted = hn::MulAdd(near, log2e, magic);
  const V rest = hn::MulSub(near, log2e, hn::Sub(shifted, magic));
  return Scaled(d, PowerOfRest(d, rest), shifted);
}

// 2^x for x <= 0; exactly 0 below -50.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOfTwo(D d, V x) {
  const V magic = hn::Set(d, kNearestInteger), shifted = hn::Add(x, magic);
  const V rest = hn::Sub(x, hn::Sub(shifted, magic));
  const V y = Scaled(d, PowerOfRest(d, rest), shifted);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -50.0f)), y);
}

// 2^(x - 0.5) for x <= 1, rounded to bf16; exactly 0 below -49.5. With x = n + rest, a polynomial
// of degree 3 gives 2^(rest - 0.5), which is at most 1. It is at most 7.5e-5 off, where rounding is
// up to 2e-3. Half a unit of a bf16 in [0.5, 1) is added to its constant term, so that dropping the
// lower bits rounds.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundedPowerOfTwo(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, kNearestInteger), shifted = hn::Add(x, magic);
  const V rest = hn::Sub(x, hn::Sub(shifted, magic));
  V p = hn::Set(d, 0x1.3f96a4p-5f);
  p = hn::MulAdd(p, rest, hn::Set(d, 0x1.5f56a4p-3f));
  p = hn::MulAdd(p, rest, hn::Set(d, 0x1.f5f97ep-2f));
  p = hn::MulAdd(p, rest, hn::Set(d, 0x1.6a033cp-1f + 0x1p-9f));
  const auto upper = hn::And(hn::BitCast(du, Scaled(d, p, shifted)), hn::Set(du, 0xffff0000u));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -49.5f)), hn::BitCast(d, upper));
}

// 1 / (1 + e^-x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, Exp(d, hn::Neg(x))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(x))));
}

// x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), x), hn::Set(d, 0.044715f), x);
  return hn::Mul(x, Sigmoid(d, hn::Mul(cubic, hn::Set(d, 1.5957691216057308f))));
}

// x Phi(x), by erfc(z) = t(a1 + t(a2 + ...)) e^-z^2 with t = 1 / (1 + p z): Abramowitz and Stegun
// 7.1.26, at most 1.5e-7 off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678118654752f));
  const V t = hn::Div(one, hn::MulAdd(z, hn::Set(d, 0.3275911f), one));
  V p = hn::Set(d, 1.061405429f);
  p = hn::MulAdd(p, t, hn::Set(d, -1.453152027f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.421413741f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.284496736f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.254829592f));
  const V tail = hn::Mul(hn::Mul(hn::Mul(p, t), Exp(d, hn::Neg(hn::Mul(z, z)))), hn::Set(d, 0.5f));
  const V phi = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  return hn::Mul(x, phi);
}

// Calls visitor(f) with f the activation as a function of vectors.
template <class D, typename Visitor>
HWY_INLINE void WithActivation(D d, Activation activation, Visitor visitor) {
  using V = hn::Vec<D>;
  switch (activation) {
    case Activation::kRelu: return visitor([=](V v) { return hn::Max(v, hn::Zero(d)); });
    case Activation::kGelu: return visitor([=](V v) { return Gelu(d, v); });
    case Activation::kGeluTanh: return visitor([=](V v) { return GeluTanh(d, v); });
    case Activation::kSilu: return visitor([=](V v) { return Silu(d, v); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace::tensor
HWY_AFTER_NAMESPACE();

#endif
