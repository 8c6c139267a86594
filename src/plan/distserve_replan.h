// When to search again (DistServe, section 4.3): a watcher of arrival rate, mean input and mean
// output length over windows. The paper names no threshold. Here a window is suspect when a level
// is far from the reference both relatively and by the spread of the reference's own windows; a few
// suspect windows in a row, in the same direction, call for a new plan, and their levels become the
// new reference. So bursts do not make it flap and a step is seen within `confirm_windows` full
// windows. One thread.
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
  int reference_windows = 6;  // at least 2: how many tell what a plan was made for
  int confirm_windows = 2;    // in a row
  double change_min = 0.25;   // relative; smaller changes are not worth a plan
  double deviations = 3;      // of the reference's windows
  int64_t requests_min = 30;  // a window with fewer says nothing of lengths
};

// What a plan is made for.
struct WorkloadLevel {
  double requests_per_s = 0, input_tokens = 0, output_tokens = 0;
};

struct ReplanReason {
  enum class What : uint8_t { kRate, kInputLength, kOutputLength } what = What::kRate;
  WorkloadLevel before, now;
  double at_s = 0;  // end of the deciding window
  int windows = 0;  // that confirmed it
  double window_s = 0;
  std::string ToString()
      const;  // "mean input went from 1020 to 2047 tokens for 2 windows of 300 s"
};

class ReplanTrigger {
 public:
  // REQUIRES: windows of some length, at least 2 for the reference, at least 1 to confirm.
  explicit ReplanTrigger(const ReplanOptions& options);

  // A request arrived; its output length as known or predicted. Times never go back. The call that
  // closes the deciding window returns the reason.
  std::optional<ReplanReason> Arrived(double at_s, int input_tokens, int output_tokens);
  // Time has passed.
  std::optional<ReplanReason> Tick(double now_s);

  uint64_t windows() const { return windows_; }

 private:
  static constexpr int kQuantities = 3;
  using Levels = std::array<std::optional<double>, kQuantities>;  // by What

  std::optional<ReplanReason> Close();
  // +1 or -1 where the level is suspect, 0 where not.
  int Verdict(int quantity, const Levels& window) const;
  std::vector<double> ReferenceLevels(int quantity) const;
  static WorkloadLevel Mean(const std::deque<Levels>& windows);
  ReplanReason Restart(int quantity);

  const ReplanOptions options_;
  bool started_ = false;
  double open_since_s_ = 0;
  int64_t requests_ = 0;  // of the open window
  double input_ = 0, output_ = 0;
  std::deque<Levels> reference_;
  std::deque<Levels> recent_;              // the last confirm_windows
  std::array<int, kQuantities> streak_{};  // signed: suspect windows in a row
  uint64_t windows_ = 0;
};

}  // namespace millrace::plan
