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

// e^x to about 2e-7 relative. Below -87.3 exactly 0 (so e^-inf is 0), above 88.7 infinite.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first with a short mantissa.
  const V clamped = hn::Min(hn::Max(x, hn::Set(d, -87.5f)), hn::Set(d, 89.0f));
  const V n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504088896341f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // e^r = 1 + r + r^2 p(r), Taylor's series: the first term left out is r^7 / 5040 < 1.2e-7.
  V p = hn::Set(d, 1.0f / 720.0f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  // 2^n in two factors: n = 128 has no exponent of its own.
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto power = [&](auto e) {
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(e, hn::Set(di, 127))));
  };
  const V scaled = hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(whole, half)));
  const V finite = hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.3f)), hn::Zero(d), scaled);
  return hn::IfThenElse(hn::IsNaN(x), x, finite);
}

// e^x for x <= 0, the exponential of a softmax, in fewer steps: exactly 0 below -87.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfNegative(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.0f / 720.0f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto scaled = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::BitCast(d, scaled));
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
