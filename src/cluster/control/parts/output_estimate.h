// OutputEstimate: how many tokens a request will probably generate, from the lengths of the answers
// that ended lately. KV is reserved for this many tokens and not for the limit, which clients often
// leave at the model's whole length (docs/decisions/0005).
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::cluster {

class OutputEstimate {
 public:
  static constexpr size_t kAnswersKept = 512;
  // The share of the answers that are no longer than the estimate.
  static constexpr double kQuantile = 0.8;
  // Before this many answers have ended, each is estimated at kFirstGuess tokens.
  static constexpr size_t kAnswersNeeded = 16;
  static constexpr int64_t kFirstGuess = 128;

  // An answer has ended by itself, with that many tokens.
  void Ended(int64_t tokens);
  // In [1, limit], of a sequence that has generated `so_far` tokens: the quantile of the answers
  // that were longer, or twice as many as so far if too few were. REQUIRES: limit >= 1.
  int64_t For(int64_t limit, int64_t so_far) const;

 private:
  std::vector<int64_t> answers_;  // a ring, from the moment it is full
  size_t next_ = 0;
  mutable std::vector<int64_t> longer_;   // scratch space
  mutable int64_t of_new_ = kFirstGuess;  // the estimate before the first token
  mutable bool stale_ = false;            // of_new_ has to be computed again
};

}  // namespace millrace::cluster
