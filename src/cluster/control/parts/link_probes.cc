#include "cluster/control/parts/link_probes.h"

#include <fmt/format.h>

namespace millrace::cluster {
namespace {

// What a link between two machines can have; wider than any real one.
constexpr double kLatencyMin_s = 1e-8, kLatencyMax_s = 10;
constexpr double kRateMin = 100, kRateMax = 1e13;  // bytes per second

Status CheckRange(std::string_view what, double value, double low, double high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument(
      fmt::format("a {} of {:g} is outside [{:g}, {:g}]", what, value, low, high));
}

}  // namespace

void LinkProbes::Add(WorkerId worker) {
  if (workers_.size() >= LinkProbeOptions::kWorkersMax) return;
  const auto add = [&](End other) {
    due_.insert({Time{}, {worker, other}});
    due_.insert({Time{}, {other, worker}});
  };
  add(std::nullopt);
  for (const WorkerId other : workers_) add(other);
  workers_.insert(worker);
}

void LinkProbes::Remove(WorkerId worker) {
  if (workers_.erase(worker) == 0) return;
  const auto uses = [worker](const Pair& pair) {
    return pair.first == worker || pair.second == worker;
  };
  std::erase_if(due_, [&](const auto& entry) { return uses(entry.second); });
  std::erase_if(links_, [&](const auto& entry) { return uses(entry.first); });
  if (probe_ && uses(probe_->pair)) probe_.reset();
}

std::optional<LinkProbes::Probe> LinkProbes::Next(bool busy, Time now) {
  if (probe_ && now >= probe_until_) {
    due_.insert({now + options_.retry, probe_->pair});
    probe_.reset();
  }
  if (busy) {
    quiet_since_.reset();
    return std::nullopt;
  }
  if (!quiet_since_) quiet_since_ = now;
  if (probe_ || due_.empty() || now - *quiet_since_ < options_.quiet) return std::nullopt;
  const auto [when, pair] = *due_.begin();
  if (when > now) return std::nullopt;
  due_.erase(due_.begin());
  probe_ = Probe{ProbeId(++probes_), pair};
  probe_until_ = now + options_.limit;
  return probe_;
}

Status LinkProbes::Take(WorkerId worker, const LinkProbed& answer, Time now) {
  if (!probe_ || probe_->id != answer.probe || probe_->by() != worker) {
    return NotFound("this probe is not in progress");
  }
  const Pair pair = probe_->pair;
  probe_.reset();
  Status usable = answer.status;
  if (usable.ok()) {
    usable = CheckRange("latency in seconds", answer.latency_s, kLatencyMin_s, kLatencyMax_s);
  }
  if (usable.ok()) {
    usable = CheckRange("rate in bytes per second", answer.bytes_per_s, kRateMin, kRateMax);
  }
  due_.insert({now + (usable.ok() ? options_.every : options_.retry), pair});
  if (usable.ok()) links_[pair] = {answer.latency_s, answer.bytes_per_s, now};
  return usable;
}

}  // namespace millrace::cluster
