// LoadMeter: what clients ask of a cluster and what they get: the rate and lengths of the requests,
// and the share of them that keep the limits on latency. It hears of requests as a front end does:
// when they arrive, and when their tokens reach the client.
//
// Owned by Autopilot. Pure: times are arguments and never go back. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "core/latency_limits.h"
#include "core/output.h"

namespace millrace::cluster {

struct RequestLengths {
  int prompt_tokens = 0, output_tokens = 0;
};

// What was asked.
struct MeasuredLoad {
  double requests_per_s = 0;
  double prompt_tokens = 0, output_tokens = 0;  // means; 0: not known
  double variation = 1;  // of the gaps between arrivals: standard deviation over mean
  uint64_t requests = 0;
};

// What was answered. Requests that a client aborted do not count.
struct MeasuredService {
  uint64_t answers = 0;  // requests that have ended, failed ones included
  uint64_t within = 0;   // of these: within every limit
  uint64_t missed_ttft = 0, missed_tpot = 0;
  uint64_t failed = 0;
  double answers_per_s = 0, output_tokens_per_s = 0;
  double attainment() const {
    return answers == 0 ? 1 : static_cast<double>(within) / static_cast<double>(answers);
  }
};

class LoadMeter {
 public:
  static constexpr Duration kKept = Duration::Seconds(600);  // older requests are forgotten
  static constexpr size_t kRequestsMax = 20'000;             // and those beyond this number

  explicit LoadMeter(const LatencyLimits& limits) : limits_(limits) {}

  void Arrived(RequestId id, int prompt_tokens, Time now);
  // Tokens of the request reach the client, or it ends. An unknown request is ignored.
  void Heard(const RequestOutput& output, Time now);

  // Of the requests that arrived in [since, now].
  MeasuredLoad Load(Time since, Time now) const;
  // Of the requests that ended in [since, now] and arrived at `arrived` or later. Requests that
  // still run are not judged.
  MeasuredService Service(Time since, Time now, Time arrived = {}) const;
  // A sample of the load since then, at most `most`: of the latest requests whose answers are
  // known; the oldest first. If some of these came before `since`, the prompts are those of the
  // latest arrivals since then, known answers or not: after a shift, the requests with long answers
  // end last, and those from before it would hide it.
  std::vector<RequestLengths> Lengths(size_t most, Time since = {}) const;
  // The mean answer of the requests kept; `otherwise` if none has ended.
  double MeanOutput(double otherwise) const;

  // The longest time since the last call without a token for any client while requests ran.
  Duration TakeLongestSilence(Time now);
  size_t running() const { return running_.size(); }

 private:
  struct Arrival {
    Time at;
    int prompt_tokens = 0;
  };
  struct Running {
    Time arrived;
    int prompt_tokens = 0;
    int tokens = 0, sequences = 1;
  };
  struct Ended {
    Time arrived, at;
    RequestLengths lengths;
    bool missed_ttft = false, missed_tpot = false, failed = false;
  };
  void End(RequestId id, const RequestOutput& output, Time now);
  void Forget(Time now);
  void NoteToken(Time now);

  const LatencyLimits limits_;
  std::deque<Arrival> arrivals_;
  std::deque<Ended> ended_;
  std::unordered_map<RequestId, Running> running_;
  std::optional<Time> quiet_since_;  // the last token of any request, while requests run
  Duration longest_silence_;
};

}  // namespace millrace::cluster
