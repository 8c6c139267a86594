// The cost of serialising and parsing a step.
//
//   build/release/bench/wire_cost
//
// Time is the thread's CPU time, best of five runs of 2,000 steps. Target: 20 us for both at 64
// decodes.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "wire/codec.h"
#include "wire/testing/random_messages.h"

namespace millrace::wire {
namespace {

constexpr int kRuns = 5;
constexpr int kSteps = 2000;

double CpuMicros() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

void Measure(int sequences) {
  const ToWorker message = testing::DecodeStep(sequences);
  Encoder encoder;
  Decoder decoder;
  double encode_us = std::numeric_limits<double>::max(), decode_us = encode_us;
  size_t bytes = 0;
  for (int run = 0; run < kRuns; ++run) {
    double encoding = 0, decoding = 0;
    for (int i = 0; i < kSteps; ++i) {
      const double start = CpuMicros();
      const auto encoded = encoder.Encode({}, message);
      const double encoded_at = CpuMicros();
      MR_CHECK(encoded.ok());
      MR_CHECK(decoder.DecodeToWorker(*encoded).ok());
      const double decoded_at = CpuMicros();
      encoding += encoded_at - start;
      decoding += decoded_at - encoded_at;
      bytes = encoded->size();
    }
    encode_us = std::min(encode_us, encoding / kSteps);
    decode_us = std::min(decode_us, decoding / kSteps);
  }
  fmt::print("{:5} decodes  {:6} bytes  encode {:6.1f} us  decode {:6.1f} us\n", sequences, bytes,
             encode_us, decode_us);
}

}  // namespace
}  // namespace millrace::wire

int main() {
  for (const int sequences : {1, 64, 256, 1024}) millrace::wire::Measure(sequences);
}
