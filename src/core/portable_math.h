// Sine, cosine, logarithm and powers from IEEE 754's own operations, so that what is served does
// not depend on a C library, whose functions differ in their last bits from version to version.
//
// Pure functions; any thread. They are for tables and single numbers, and slower than the
// C library's.
#pragma once

#include <span>

namespace millrace {

// The floats nearest to each angle's cosine and sine, which are 1e-15 off before they are rounded.
// REQUIRES: equal sizes; |angle| < 2^24.
void PortableTurns(std::span<const float> angles, std::span<float> cos, std::span<float> sin);

// To about one unit in the last place. REQUIRES: x is positive, normal and finite.
double PortableLog(double x);
// base^exponent, to some 1e-14 of it; small whole powers are exact. 0 and infinity beyond what
// doubles hold. REQUIRES: base is positive, normal and finite.
double PortablePow(double base, double exponent);

}  // namespace millrace
