// LoadSampler: samples the number of requests in a service at arrivals, in bounded memory. A value;
// one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "sim/record/recorder.h"

namespace millrace::sim {

// The number of requests in the service at an arrival.
struct LoadSample {
  Time at;
  uint64_t arrived = 0;
  int64_t alive = 0, waiting = 0;  // waiting: without a token yet
};

class LoadSampler {
 public:
  static constexpr size_t kSamplesMax = 512;

  // Call for every arrival. Keeps each n-th sample; n grows with their number.
  void Arrived(Time now, const Recorder& recorder) {
    if (++arrived_ % every_ != 0) return;
    if (samples_.size() == kSamplesMax) {  // drops every other sample and doubles n
      for (size_t i = 0; i < kSamplesMax / 2; ++i) samples_[i] = samples_[2 * i + 1];
      samples_.resize(kSamplesMax / 2);
      every_ *= 2;
      if (arrived_ % every_ != 0) return;
    }
    samples_.push_back({now, arrived_, static_cast<int64_t>(recorder.alive()),
                        static_cast<int64_t>(recorder.waiting())});
  }
  const std::vector<LoadSample>& samples() const { return samples_; }

 private:
  std::vector<LoadSample> samples_;
  uint64_t arrived_ = 0, every_ = 1;
};

}  // namespace millrace::sim
