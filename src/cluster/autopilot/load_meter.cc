#include "cluster/autopilot/load_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace::cluster {

void LoadMeter::Arrived(RequestId id, int prompt_tokens, Time now) {
  Forget(now);
  arrivals_.push_back({now, prompt_tokens});
  // Beyond the limit the request still counts as an arrival, but its answer is not followed.
  if (running_.size() >= kRequestsMax) return;
  running_.emplace(id, Running{.arrived = now, .prompt_tokens = prompt_tokens});
  if (!quiet_since_) quiet_since_ = now;
}

void LoadMeter::Heard(const RequestOutput& output, Time now) {
  const auto found = running_.find(output.request);
  if (found == running_.end()) return;
  Running& request = found->second;
  request.sequences = std::max(request.sequences, output.index + 1);
  // A vector takes as much as a prompt with one token.
  request.tokens += static_cast<int>(output.pooled.empty() ? output.tokens.size() : 1);
  if (output.yields()) NoteToken(now);
  if (output.finish && output.times) End(output.request, output, now);
}

void LoadMeter::End(RequestId id, const RequestOutput& output, Time now) {
  const Running request = running_.extract(id).mapped();
  if (running_.empty()) quiet_since_.reset();
  if (output.finish == FinishReason::kAbort) return;
  Ended ended{.arrived = request.arrived,
              .at = now,
              .lengths = {request.prompt_tokens, request.tokens / request.sequences}};
  ended.failed = output.finish == FinishReason::kError;
  if (const RequestTimes& times = *output.times; times.first_token) {
    ended.missed_ttft = !limits_.KeepsTtft((*times.first_token - times.arrived).seconds());
    const int gaps = ended.lengths.output_tokens - 1;
    const double decoded_s = (*times.last_token - *times.first_token).seconds();
    ended.missed_tpot = gaps > 0 && !limits_.KeepsTpot(decoded_s / gaps);
  }
  ended_.push_back(ended);
  if (ended_.size() > kRequestsMax) ended_.pop_front();
}

void LoadMeter::NoteToken(Time now) {
  if (quiet_since_) longest_silence_ = std::max(longest_silence_, now - *quiet_since_);
  quiet_since_ = now;
}

Duration LoadMeter::TakeLongestSilence(Time now) {
  if (quiet_since_) longest_silence_ = std::max(longest_silence_, now - *quiet_since_);
  return std::exchange(longest_silence_, Duration{});
}

void LoadMeter::Forget(Time now) {
  const Time oldest{now.ns - kKept.ns};
  while (!arrivals_.empty() &&
         (arrivals_.front().at < oldest || arrivals_.size() >= kRequestsMax)) {
    arrivals_.pop_front();
  }
  while (!ended_.empty() && ended_.front().at < oldest) ended_.pop_front();
}

MeasuredLoad LoadMeter::Load(Time since, Time now) const {
  MeasuredLoad load;
  double prompts = 0, gaps = 0, squares = 0;
  std::optional<Time> previous;
  for (const Arrival& arrival : arrivals_) {
    if (arrival.at < since || arrival.at > now) continue;
    ++load.requests;
    prompts += arrival.prompt_tokens;
    if (previous) {
      const double gap_s = (arrival.at - *previous).seconds();
      gaps += gap_s;
      squares += gap_s * gap_s;
    }
    previous = arrival.at;
  }
  const double span_s = (now - since).seconds();
  if (load.requests == 0 || span_s <= 0) return load;
  const auto count = static_cast<double>(load.requests);
  load.requests_per_s = count / span_s;
  load.prompt_tokens = prompts / count;
  load.output_tokens = MeanOutput(0);
  constexpr uint64_t kGapsMin = 20;  // fewer say nothing of their variation
  if (load.requests > kGapsMin && gaps > 0) {
    const double mean = gaps / (count - 1);
    load.variation = std::sqrt(std::max(0.0, squares / (count - 1) - mean * mean)) / mean;
  }
  return load;
}

MeasuredService LoadMeter::Service(Time since, Time now, Time arrived) const {
  MeasuredService service;
  double tokens = 0;
  for (const Ended& ended : ended_) {
    if (ended.at < since || ended.at > now || ended.arrived < arrived) continue;
    ++service.answers;
    service.missed_ttft += ended.missed_ttft ? 1 : 0;
    service.missed_tpot += ended.missed_tpot ? 1 : 0;
    service.failed += ended.failed ? 1 : 0;
    service.within += !ended.missed_ttft && !ended.missed_tpot && !ended.failed ? 1 : 0;
    tokens += ended.lengths.output_tokens;
  }
  if (const double span_s = (now - since).seconds(); span_s > 0) {
    service.answers_per_s = static_cast<double>(service.answers) / span_s;
    service.output_tokens_per_s = tokens / span_s;
  }
  return service;
}

std::vector<RequestLengths> LoadMeter::Lengths(size_t most, Time since) const {
  std::vector<RequestLengths> known;
  bool before = false;
  for (auto it = ended_.rbegin(); it != ended_.rend() && known.size() < most; ++it) {
    if (it->failed || it->lengths.output_tokens <= 0) continue;
    known.push_back(it->lengths);
    before |= it->arrived < since;
  }
  std::reverse(known.begin(), known.end());
  if (!before) return known;
  std::vector<RequestLengths> lengths;
  for (auto it = arrivals_.rbegin(); it != arrivals_.rend() && lengths.size() < most; ++it) {
    if (it->at < since) break;
    const RequestLengths& answered = known[known.size() - 1 - lengths.size() % known.size()];
    lengths.push_back({it->prompt_tokens, answered.output_tokens});
  }
  std::reverse(lengths.begin(), lengths.end());
  return lengths;
}

double LoadMeter::MeanOutput(double otherwise) const {
  constexpr size_t kLatest = 256;  // an older answer says little of the next ones
  double sum = 0;
  size_t count = 0;
  for (auto it = ended_.rbegin(); it != ended_.rend() && count < kLatest; ++it) {
    if (it->failed) continue;
    sum += it->lengths.output_tokens;
    ++count;
  }
  return count == 0 ? otherwise : sum / static_cast<double>(count);
}

}  // namespace millrace::cluster
