// When to search again (DistServe, section 4.3): watches arrival rate, mean input length and mean
// output length over windows. The paper names no threshold. Here a window is suspect if a level
// differs from the reference by both a relative minimum and the spread of the reference's own
// windows. A few suspect windows in a row, in the same direction, call for a new plan, and their
// levels become the new reference. Short bursts therefore cause no replanning, and a step is
// detected within `confirm_windows` full windows; a step of the lengths, within as many as have
// enough requests. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace millrace::plan {

struct ReplanOptions {
  double window_s = 300;
  int reference_windows = 6;  // at least 2: the windows that form the reference
  int confirm_windows = 2;    // suspect windows in a row
  double change_min = 0.25;   // relative; smaller changes are ignored
  double deviations = 3;      // standard deviations of the reference's windows
  // Lengths are means of at least so many requests, of as many windows as these take.
  int64_t requests_min = 30;
};

// The workload that a plan is made for.
struct WorkloadLevel {
  double requests_per_s = 0, input_tokens = 0, output_tokens = 0;
};

struct ReplanReason {
  enum class What : uint8_t { kRate, kInputLength, kOutputLength } what = What::kRate;
  WorkloadLevel before, now;
  double at_s = 0;  // end of the deciding window
  int windows = 0;  // that confirmed the change
  double window_s = 0;
  std::string ToString()
      const;  // "mean input went from 1020 to 2047 tokens for 2 windows of 300 s"
};

class ReplanTrigger {
 public:
  // REQUIRES: windows longer than zero, at least 2 for the reference, at least 1 to confirm.
  explicit ReplanTrigger(const ReplanOptions& options);

  // Records an arrival with its known or predicted output length. Times never go back. The call
  // that closes the deciding window returns the reason.
  std::optional<ReplanReason> Arrived(double at_s, int input_tokens, int output_tokens);
  // Advances the time.
  std::optional<ReplanReason> Tick(double now_s);

  uint64_t windows() const { return windows_; }

 private:
  static constexpr int kQuantities = 3;
  using Levels = std::array<std::optional<double>, kQuantities>;  // by What

  std::optional<ReplanReason> Close();
  bool ReferenceFull() const;
  // +1 or -1 if the level is suspect, else 0.
  int Verdict(int quantity, const Levels& window) const;
  std::vector<double> ReferenceLevels(int quantity) const;
  static WorkloadLevel Mean(const std::deque<Levels>& windows);
  ReplanReason Restart(int quantity);

  const ReplanOptions options_;
  bool started_ = false;
  double open_since_s_ = 0;
  int64_t requests_ = 0;  // in the open window
  // Since the last window with lengths.
  int64_t measured_ = 0;
  double input_ = 0, output_ = 0;
  std::deque<Levels> reference_;
  std::deque<Levels> recent_;              // the last confirm_windows
  std::array<int, kQuantities> streak_{};  // signed: suspect windows in a row
  uint64_t windows_ = 0;
};

}  // namespace millrace::plan
