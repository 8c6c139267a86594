// Reservations: the blocks that the Orca policies promise to admitted requests. A request has one
// for each of its sequences, all of equal size. Plain `orca` counts them (Algorithm 1); a buddy
// allocator places them if the policy needs contiguous memory (vLLM section 6.1). The blocks
// themselves stay paged. `paged` promises nothing.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "sched/buddy.h"
#include "sched/request.h"
#include "sched/reservation_policy.h"
#include "sched/scheduler.h"

namespace millrace::sched {

class Reservations {
 public:
  explicit Reservations(const SchedulerOptions& options);

  bool reserves() const { return reserves_; }  // false: `paged`
  int blocks() const { return blocks_; }       // reserved by all requests
  // The tokens that one sequence can have: the model's length, or what the pool or the largest
  // chunk holds.
  int ModelLenMax() const;
  // The slots that a sequence is promised at admission; none if the policy promises nothing.
  std::optional<int> SlotsEach(const NewRequest& request, int output_limit) const;

  // kInvalidArgument: the request can never fit, with the numbers.
  Status CheckFits(const NewRequest& request, int output_limit) const;
  // kAdmitted if there is room for its reservation now.
  Verdict Consider(const Request& request) const;
  // Reserves what the request needs now. REQUIRES: Consider has admitted it.
  void Take(Request& request);
  // Reserves `blocks_each` for every sequence. Returns false and changes nothing when there is no
  // room. REQUIRES: it has no reservation.
  bool Take(Request& request, int blocks_each);
  void Release(Request& request);

  // Crashes unless `requests` are all that have a reservation.
  void CheckIntegrity(std::span<const Request* const> requests) const;

 private:
  int BlocksFor(int tokens) const;
  int RoundUp(int blocks) const;
  std::optional<int> BlocksEach(const NewRequest& request, int output_limit) const;
  std::optional<int> BlocksEach(const Request& request) const;
  int WorstCase(const NewRequest& request, int output_limit) const;

  const int block_size_, num_blocks_, max_model_len_;
  const bool reserves_;
  const std::unique_ptr<ReservationPolicy> policy_;
  std::optional<BuddyAllocator> buddy_;
  int blocks_ = 0;
};

}  // namespace millrace::sched
