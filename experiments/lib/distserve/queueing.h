// Mean time to first token of a prefill instance as an M/D/1 queue (DistServe, section 3.1):
// Poisson arrivals and prompts of one length, so every execution takes the same time. These closed
// forms check the simulator and explain why a plan prefers one kind of parallelism. Pure; any
// thread.
#pragma once

#include <optional>

namespace millrace::experiments::distserve {

// Poisson arrivals at one device that takes `seconds` per request.
struct Md1Load {
  double requests_per_s = 0;
  double seconds = 0;

  double load() const { return requests_per_s * seconds; }  // R D
};

// None if the queue grows without bound (load at least 1, or at least the speed-up).
std::optional<double> Md1MeanTtft(const Md1Load& load);
// A pipeline of `degree` equal stages: the latency of one device, the queue of a faster one.
std::optional<double> Md1InterOpTtft(const Md1Load& load, int degree);
// Every operator is split, so each request runs `speedup` times faster. `speedup` is below the
// degree.
std::optional<double> Md1IntraOpTtft(const Md1Load& load, double speedup);
// `replicas` queues, each with its share of the arrivals.
std::optional<double> Md1ReplicatedTtft(const Md1Load& load, int replicas);

// The load R D above which a pipeline of 2 has a lower mean TTFT than a split by 2 with this
// speed-up. Below it the split wins. None if the split wins at every stable load. REQUIRES: 1 <
// speedup <= 2.
std::optional<double> InterOpCrossover(double speedup);

}  // namespace millrace::experiments::distserve
