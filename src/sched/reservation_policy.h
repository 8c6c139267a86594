// ReservationPolicy: the number of KV slots that a sequence is promised at admission, for the
// systems that vLLM section 6.1 compares, by KvPolicy. A policy that promises slots admits only
// what it can keep and so never preempts; `paged` promises nothing. One small file per policy.
// Owned by the scheduler; one thread.
#pragma once

#include <memory>
#include <optional>

#include "sched/scheduler.h"

namespace millrace::sched {

struct SlotNeed {
  int prompt_tokens = 0;
  int output_tokens_max = 0;               // the request's own limit
  std::optional<int> known_output_tokens;  // the output's length, if known (a replayed trace)
  int model_len_max = 0;
};

class ReservationPolicy {
 public:
  virtual ~ReservationPolicy() = default;
  // Slots of one sequence; nullopt: taken on demand.
  virtual std::optional<int> SlotsFor(const SlotNeed& need) const = 0;
  // Whether the slots must be adjacent, as a buddy allocator places them (vLLM section 6.1).
  virtual bool contiguous() const { return false; }
};

std::unique_ptr<ReservationPolicy> MakePagedPolicy();
std::unique_ptr<ReservationPolicy> MakeOrcaPolicy();
std::unique_ptr<ReservationPolicy> MakeOrcaMaxPolicy();
std::unique_ptr<ReservationPolicy> MakeOrcaPow2Policy();
std::unique_ptr<ReservationPolicy> MakeOrcaOraclePolicy();
std::unique_ptr<ReservationPolicy> MakeReservationPolicy(KvPolicy policy);

}  // namespace millrace::sched
