// AmxEmulator: AMX's instructions in software, for tests on machines without them. The processor
// refuses such an instruction with a signal, whose handler executes it. So the tests run the very
// code that a machine with AMX runs, a thousand times slower.
//
// One at a time, in any thread of a test; all threads of the process then have tiles.
#pragma once

#include <cstdint>

namespace millrace::tensor {

class AmxEmulator {
 public:
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

  // Instructions executed so far, of all threads: a test can tell that there were some.
  static int64_t executed();
  // Whether this is possible here: x86-64 with AVX-512 and without AMX.
  static bool IsPossible();
};

}  // namespace millrace::tensor
