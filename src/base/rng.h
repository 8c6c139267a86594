// Counter-based randomness: every draw is a function of (seed, counter), never of a hidden stream,
// so replay, batching and migration agree by construction. Rng is a convenience for tests and
// workloads that need a sequence of draws from one seed.
#pragma once

#include <cstdint>

namespace millrace {

// SplitMix64's finaliser: a bijection of 64 bits with full avalanche.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint64_t HashCounter(uint64_t seed, uint64_t counter) {
  return Mix64(Mix64(seed) ^ Mix64(counter * 0xd1342543de82ef95ull + 1));
}

// In [0, 1), 53 bits.
constexpr double UnitDouble(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

class Rng {
 public:
  explicit Rng(uint64_t seed) : seed_(seed) {}
  uint64_t Next() { return HashCounter(seed_, counter_++); }
  double Uniform() { return UnitDouble(Next()); }
  // In [lo, hi], both inclusive. REQUIRES: lo <= hi.
  int64_t Between(int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(Next() % static_cast<uint64_t>(hi - lo + 1));
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace millrace
