#include "sim/record/recorder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::sim {

void LatencyReport::Merge(const LatencyReport& other) {
  ttft.Merge(other.ttft);
  tpot.Merge(other.tpot);
  itl.Merge(other.itl);
  max_gap.Merge(other.max_gap);
  e2e.Merge(other.e2e);
  per_token.Merge(other.per_token);
  requests += other.requests;
  refused += other.refused;
  output_tokens += other.output_tokens;
  told_tokens += other.told_tokens;
  prompt_tokens += other.prompt_tokens;
  met_ttft += other.met_ttft;
  met_tpot += other.met_tpot;
  met_both += other.met_both;
  clients.resize(std::max(clients.size(), other.clients.size()));
  for (size_t i = 0; i < other.clients.size(); ++i) {
    clients[i].ttft.Merge(other.clients[i].ttft);
    clients[i].e2e.Merge(other.clients[i].e2e);
    clients[i].requests += other.clients[i].requests;
    clients[i].told_tokens += other.clients[i].told_tokens;
    clients[i].told_while_arriving += other.clients[i].told_while_arriving;
  }
  last_end = last_end + (other.last_end - other.first_arrival);
}

RequestId Recorder::Arrived(const SimRequest& request) {
  if (arrivals_++ == 0) report_.first_arrival = std::max(request.arrival, from_);
  if (std::cmp_less_equal(report_.clients.size(), request.client)) {
    report_.clients.resize(static_cast<size_t>(request.client) + 1);
  }
  for (ClientReport& client : report_.clients) client.told_while_arriving = client.told_tokens;
  uint32_t slot;
  if (free_.empty()) {
    slot = static_cast<uint32_t>(alive_.size());
    MR_CHECK(slot <= kSlotMask) << "more than " << kSlotMask << " requests alive";
    alive_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  alive_[slot] = {.request = request};
  return RequestId(arrivals_ << kSlotBits | slot);
}

void Recorder::Refused(RequestId id) {
  ++report_.refused;
  if (HasOutput(id)) --speaking_;
  free_.push_back(static_cast<uint32_t>(id.value() & kSlotMask));
}

bool Recorder::Heard(const RequestOutput& output, Time now) {
  Alive& alive = alive_[output.request.value() & kSlotMask];
  const bool counts = now >= from_;
  if (!output.tokens.empty()) {
    if (counts) report_.told_tokens += output.tokens.size();
    if (counts) ClientOf(alive).told_tokens += output.tokens.size();
    if (alive.tokens == 0) {
      ++speaking_;
      alive.first = now;
      if (counts) report_.ttft.Add((now - alive.request.arrival).seconds());
      if (counts) ClientOf(alive).ttft.Add((now - alive.request.arrival).seconds());
    } else {
      const Duration gap = now - alive.last;
      alive.longest_gap = std::max(alive.longest_gap, gap);
      if (counts) report_.itl.Add(gap.seconds());
    }
    alive.last = now;
    alive.tokens += static_cast<int>(output.tokens.size());
  }
  if (!output.finish) return false;
  speaking_ -= alive.tokens > 0;
  if (counts) Close(alive);
  free_.push_back(static_cast<uint32_t>(output.request.value() & kSlotMask));
  return true;
}

void Recorder::Close(Alive& alive) {
  LatencyReport& r = report_;
  ++r.requests;
  r.prompt_tokens += static_cast<uint64_t>(alive.request.prompt_tokens);
  r.output_tokens += static_cast<uint64_t>(alive.tokens);
  r.last_end = std::max(r.last_end, alive.last);
  const double ttft = (alive.first - alive.request.arrival).seconds();
  const double e2e = (alive.last - alive.request.arrival).seconds();
  r.e2e.Add(e2e);
  ++ClientOf(alive).requests;
  ClientOf(alive).e2e.Add(e2e);
  r.per_token.Add(e2e / std::max(alive.tokens, 1));
  double tpot = 0;
  if (alive.tokens > 1) {
    tpot = (alive.last - alive.first).seconds() / (alive.tokens - 1);
    r.tpot.Add(tpot);
    r.max_gap.Add(alive.longest_gap.seconds());
  }
  const bool met_ttft = limits_.KeepsTtft(ttft);
  const bool met_tpot = limits_.KeepsTpot(tpot);
  r.met_ttft += met_ttft;
  r.met_tpot += met_tpot;
  r.met_both += met_ttft && met_tpot;
}

}  // namespace millrace::sim
