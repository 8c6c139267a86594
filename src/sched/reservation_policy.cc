#include "sched/reservation_policy.h"

#include "base/check.h"

namespace millrace::sched {

std::unique_ptr<ReservationPolicy> MakeReservationPolicy(KvPolicy policy) {
  switch (policy) {
    case KvPolicy::kPaged: return MakePagedPolicy();
    case KvPolicy::kOrca: return MakeOrcaPolicy();
    case KvPolicy::kOrcaMax: return MakeOrcaMaxPolicy();
    case KvPolicy::kOrcaPow2: return MakeOrcaPow2Policy();
    case KvPolicy::kOrcaOracle: return MakeOrcaOraclePolicy();
  }
  MR_CHECK(false) << "no such KV policy";
  return nullptr;
}

}  // namespace millrace::sched
