#include "experiments/lib/helix/python_random.h"

#include <array>

namespace millrace::experiments::helix {
namespace {

constexpr int kWords = std::mt19937::state_size;

// Matsumoto and Nishimura's initialisation by an array with one key, which Python uses for every
// integer below 2^32. std::seed_seq mixes differently.
std::array<uint32_t, kWords> StateOf(uint32_t key) {
  std::array<uint32_t, kWords> state;
  state[0] = 19650218u;
  for (uint32_t i = 1; i < kWords; ++i) {
    state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  }
  int at = 1;
  const auto step = [&at, &state] {
    if (++at < kWords) return;
    state[0] = state[kWords - 1];
    at = 1;
  };
  for (int k = 0; k < kWords; ++k) {
    state[at] = (state[at] ^ ((state[at - 1] ^ (state[at - 1] >> 30)) * 1664525u)) + key;
    step();
  }
  for (int k = 0; k < kWords - 1; ++k) {
    state[at] = (state[at] ^ ((state[at - 1] ^ (state[at - 1] >> 30)) * 1566083941u)) -
                static_cast<uint32_t>(at);
    step();
  }
  state[0] = 0x80000000u;
  return state;
}

// The seed-sequence interface that std::mt19937 needs; copies the given words.
struct ReadyState {
  using result_type = uint32_t;
  std::array<uint32_t, kWords> words;
  template <typename Iterator>
  void generate(Iterator begin, Iterator end) {
    for (size_t i = 0; begin != end; ++begin, ++i) *begin = words[i];
  }
};

std::mt19937 EngineOf(uint32_t seed) {
  ReadyState state{StateOf(seed)};
  return std::mt19937(state);
}

}  // namespace

PythonRandom::PythonRandom(uint32_t seed) : engine_(EngineOf(seed)) {}

}  // namespace millrace::experiments::helix
