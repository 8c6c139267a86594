// Recorder: what clients of a simulated service would measure. Its memory is that of the live
// requests plus fixed histograms. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "core/latency_limits.h"
#include "core/output.h"
#include "sim/load/quantiles.h"
#include "sim/load/workload.h"

namespace millrace::sim {

// One client's part of a service.
struct ClientReport {
  Quantiles ttft, e2e;  // in seconds
  uint64_t requests = 0;
  // All delivered tokens; and until the last request of any client arrived: afterwards the queues
  // only drain.
  uint64_t told_tokens = 0, told_while_arriving = 0;
};

// All times in seconds.
struct LatencyReport {
  Quantiles ttft;     // to the first token
  Quantiles tpot;     // mean gap after the first token; none for one-token requests
  Quantiles itl;      // every gap
  Quantiles max_gap;  // the longest gap of each request
  Quantiles e2e;
  Quantiles per_token;  // e2e / output tokens: Orca's normalised latency
  uint64_t requests = 0, refused = 0;
  uint64_t output_tokens = 0, prompt_tokens = 0;  // of ended requests
  uint64_t told_tokens = 0;                       // all delivered tokens
  uint64_t met_ttft = 0, met_tpot = 0, met_both = 0;
  std::vector<ClientReport> clients;  // in the order of the workload file
  Time first_arrival, last_end;

  // Adds another run, or another part of a service. Its time follows that of this one.
  void Merge(const LatencyReport& other);
  double seconds() const { return (last_end - first_arrival).seconds(); }
  double attainment() const {
    const uint64_t all = requests + refused;
    return all == 0 ? 0 : static_cast<double>(met_both) / static_cast<double>(all);
  }
  // Whether enough requests met `limits`. REQUIRES: the report was recorded with them.
  bool Keeps(const LatencyLimits& limits) const {
    return !limits.any() || attainment() >= limits.share();
  }
};

class Recorder {
 public:
  // Outputs before `measure_from` are not reported.
  explicit Recorder(const LatencyLimits& limits, Time measure_from = {})
      : limits_(limits), from_(measure_from) {}

  // The request's id from now on; never reused.
  RequestId Arrived(const SimRequest& request);
  // The request was rejected on arrival: it counts as a miss of every limit.
  void Refused(RequestId id);
  // Tokens reached the client. Returns whether the request has ended.
  bool Heard(const RequestOutput& output, Time now);

  // Prefetches its memory: with many live requests, little of it is cached.
  void Prefetch(RequestId id) const { __builtin_prefetch(&alive_[id.value() & kSlotMask]); }
  const SimRequest& request(RequestId id) const { return alive_[id.value() & kSlotMask].request; }
  const LatencyReport& report() const { return report_; }
  size_t alive() const { return alive_.size() - free_.size(); }
  // Live requests without a token.
  size_t waiting() const { return alive() - speaking_; }
  bool HasOutput(RequestId id) const { return alive_[id.value() & kSlotMask].tokens > 0; }

 private:
  static constexpr int kSlotBits = 24;  // limits the live requests
  static constexpr uint64_t kSlotMask = (uint64_t{1} << kSlotBits) - 1;
  struct alignas(64) Alive {  // one cache line
    SimRequest request;
    Time first, last;
    Duration longest_gap;
    int tokens = 0;
  };
  void Close(Alive& alive);
  ClientReport& ClientOf(const Alive& alive) {
    return report_.clients[static_cast<size_t>(alive.request.client)];
  }

  const LatencyLimits limits_;
  const Time from_;
  LatencyReport report_;
  std::vector<Alive> alive_;
  std::vector<uint32_t> free_;
  uint64_t arrivals_ = 0;
  size_t speaking_ = 0;  // live requests with a token
};

}  // namespace millrace::sim
