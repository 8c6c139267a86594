// PythonRandom: the numbers of Python's `random` module after random.seed(n), so that an imitated
// simulator gets exactly the trace that the original drew: MT19937 seeded by array, 53-bit doubles,
// integers by rejection, Fisher-Yates from the end. Owned by one run; one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace millrace::experiments::helix {

class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);

  // random.random(): in [0, 1).
  double Uniform() {
    const uint32_t high = Word() >> 5, low = Word() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }
  // random.randint(0, n - 1). REQUIRES: n >= 1.
  uint32_t Below(uint32_t n) {
    const int bits = std::bit_width(n);
    uint32_t value = 0;
    do {
      value = Word() >> (32 - bits);
    } while (value >= n);
    return value;
  }
  // random.shuffle(items).
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i-- > 1;) {
      std::swap((*items)[i], (*items)[Below(static_cast<uint32_t>(i) + 1)]);
    }
  }

 private:
  uint32_t Word() { return static_cast<uint32_t>(engine_()); }

  std::mt19937 engine_;
};

}  // namespace millrace::experiments::helix
