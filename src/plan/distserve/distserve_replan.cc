#include "plan/distserve/distserve_replan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"

namespace millrace::plan {
namespace {

constexpr const char* kNames[] = {"rate", "mean input", "mean output"};
constexpr int kReferenceMost = 5;  // times reference_windows
constexpr const char* kUnits[] = {"requests/s", "tokens", "tokens"};

// The logarithm of a rate or mean length. Silence counts as one request in a very long time.
double Log(double level) {
  constexpr double kLeast = 1e-6;
  return std::log(std::max(level, kLeast));
}

double Level(const WorkloadLevel& level, int quantity) {
  return quantity == 0   ? level.requests_per_s
         : quantity == 1 ? level.input_tokens
                         : level.output_tokens;
}

}  // namespace

std::string ReplanReason::ToString() const {
  const int quantity = static_cast<int>(what);
  return fmt::format("{} went from {:.4g} to {:.4g} {} for {} windows of {:.4g} s",
                     kNames[quantity], Level(before, quantity), Level(now, quantity),
                     kUnits[quantity], windows, window_s);
}

ReplanTrigger::ReplanTrigger(const ReplanOptions& options) : options_(options) {
  MR_CHECK(options.window_s > 0 && options.reference_windows >= 2 && options.confirm_windows >= 1)
      << options.window_s << " s, " << options.reference_windows << " and "
      << options.confirm_windows << " windows";
}

std::optional<ReplanReason> ReplanTrigger::Arrived(double at_s, int input_tokens,
                                                   int output_tokens) {
  auto reason = Tick(at_s);
  ++requests_;
  ++measured_;
  input_ += input_tokens;
  output_ += output_tokens;
  return reason;
}

std::optional<ReplanReason> ReplanTrigger::Tick(double now_s) {
  if (!started_) {
    started_ = true;
    open_since_s_ = now_s;
  }
  std::optional<ReplanReason> reason;
  // After a long silence, empty windows beyond this number change nothing.
  const int limit = options_.reference_windows + options_.confirm_windows;
  for (int i = 0; i < limit && now_s >= open_since_s_ + options_.window_s; ++i) {
    open_since_s_ += options_.window_s;
    if (auto found = Close()) reason = found;
  }
  if (now_s >= open_since_s_ + options_.window_s) {
    open_since_s_ = now_s - std::fmod(now_s - open_since_s_, options_.window_s);
  }
  return reason;
}

std::optional<ReplanReason> ReplanTrigger::Close() {
  Levels window;
  window[0] = static_cast<double>(requests_) / options_.window_s;
  requests_ = 0;
  if (measured_ >= options_.requests_min) {
    window[1] = input_ / static_cast<double>(measured_);
    window[2] = output_ / static_cast<double>(measured_);
    measured_ = 0;
    input_ = output_ = 0;
  }
  ++windows_;
  if (!ReferenceFull()) {
    reference_.push_back(window);
    return std::nullopt;
  }
  recent_.push_back(window);
  if (static_cast<int>(recent_.size()) > options_.confirm_windows) recent_.pop_front();
  for (int quantity = 0; quantity < kQuantities; ++quantity) {
    if (!window[quantity]) continue;  // not known yet
    const int verdict = Verdict(quantity, window);
    int& streak = streak_[quantity];
    streak = verdict == 0 ? 0 : (streak * verdict > 0 ? streak : 0) + verdict;
    if (std::abs(streak) >= options_.confirm_windows) return Restart(quantity);
  }
  return std::nullopt;
}

// With few requests it takes longer, so that lengths have a spread as well.
bool ReplanTrigger::ReferenceFull() const {
  const auto windows = static_cast<int>(reference_.size());
  if (windows < options_.reference_windows) return false;
  return ReferenceLevels(1).size() >= 2 || windows >= kReferenceMost * options_.reference_windows;
}

std::vector<double> ReplanTrigger::ReferenceLevels(int quantity) const {
  std::vector<double> levels;
  for (const Levels& window : reference_) {
    if (window[quantity]) levels.push_back(*window[quantity]);
  }
  return levels;
}

int ReplanTrigger::Verdict(int quantity, const Levels& window) const {
  const std::vector<double> levels = ReferenceLevels(quantity);
  if (!window[quantity] || levels.size() < 2) return 0;
  // Compares ratios, so halving counts as much as doubling.
  double mean = 0, squares = 0;
  for (const double level : levels) mean += Log(level) / static_cast<double>(levels.size());
  for (const double level : levels) squares += (Log(level) - mean) * (Log(level) - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(levels.size() - 1));
  const double allowed = std::max(std::log1p(options_.change_min), options_.deviations * deviation);
  const double change = Log(*window[quantity]) - mean;
  if (std::abs(change) <= allowed) return 0;
  return change > 0 ? 1 : -1;
}

WorkloadLevel ReplanTrigger::Mean(const std::deque<Levels>& windows) {
  std::array<double, kQuantities> sums{};
  std::array<int, kQuantities> counts{};
  for (const Levels& window : windows) {
    for (int quantity = 0; quantity < kQuantities; ++quantity) {
      if (!window[quantity]) continue;
      sums[quantity] += *window[quantity];
      ++counts[quantity];
    }
  }
  const auto mean = [&](int quantity) {
    return counts[quantity] == 0 ? 0 : sums[quantity] / counts[quantity];
  };
  return {mean(0), mean(1), mean(2)};
}

// The windows that differ become the first of the new reference. No window is suspect until the
// reference is full again.
ReplanReason ReplanTrigger::Restart(int quantity) {
  ReplanReason reason{.what = static_cast<ReplanReason::What>(quantity),
                      .before = Mean(reference_),
                      .now = Mean(recent_),
                      .at_s = open_since_s_,
                      .windows = options_.confirm_windows,
                      .window_s = options_.window_s};
  reference_ = std::move(recent_);
  recent_.clear();
  streak_.fill(0);
  return reason;
}

}  // namespace millrace::plan
