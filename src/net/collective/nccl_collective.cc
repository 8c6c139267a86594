#include "net/collective/nccl_collective.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace millrace::net {
namespace {

// The number of polls of a device without a pause in between, and between checks of anything else.
constexpr int kEagerLooks = 1000;
constexpr int kLooksPerCheck = 64;
constexpr auto kPause = std::chrono::microseconds(20);

struct CommAbort {
  void operator()(ncclComm_t comm) const { ncclCommAbort(comm); }
};
// A healthy communicator has no work in progress when it ends, so abort, which does not wait for
// peers, can end it.
using Comm = std::unique_ptr<ncclComm, CommAbort>;

class NcclCollective final : public Collective {
 public:
  NcclCollective(std::unique_ptr<SlotCollective> group, const NcclOptions& options)
      : group_(std::move(group)), options_(options) {}

  Status Connect();

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  Status AllReduceSum(std::span<float> values) override;
  bool Waits() const override { return group_->Waits(); }
  void Abort(std::string_view why) override { group_->Abort(why); }

 private:
  Status Sum(std::span<float> values);
  Status Agree(size_t count);
  Status ConnectWithin(Time end);
  Status AwaitReady(ncclComm_t comm, Time end, const char* what);
  Status AwaitStream(Time end);
  template <typename Look>
  Status Await(Time end, const char* what, Look look);
  Status Fail(Status why);
  Result<bool> Ready(ncclComm_t comm, const char* what) const;
  Status Failed(const char* what, const char* why) const {
    return Unavailable(fmt::format("rank {} of {} cannot {}: {}", rank(), size(), what, why));
  }
  Status Check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return OkStatus();
    return Failed(what, ncclGetErrorString(result));
  }
  Status Check(cudaError_t error, const char* what) const {
    return error == cudaSuccess ? OkStatus() : Failed(what, cudaGetErrorString(error));
  }

  const std::unique_ptr<SlotCollective> group_;
  const NcclOptions options_;
  Comm all_;                 // the pairs are split from it
  std::vector<Comm> pairs_;  // [l]: this rank and the one whose bit l differs
  Status status_;            // of the first call that failed
};

// ---- waiting

template <typename Look>
Status NcclCollective::Await(Time end, const char* what, Look look) {
  const SteadyClock clock;
  for (int looks = 1;; looks = std::min(looks + 1, kEagerLooks)) {
    MR_ASSIGN_OR_RETURN(const bool reached, look());
    if (reached) return OkStatus();
    const bool eager = looks < kEagerLooks;
    if (!eager || looks % kLooksPerCheck == 0) {
      MR_RETURN_IF_ERROR(group_->Check());
      if (clock.Now() >= end) return Failed(what, "it took longer than the deadline");
    }
    if (!eager) std::this_thread::sleep_for(kPause);
  }
}

Result<bool> NcclCollective::Ready(ncclComm_t comm, const char* what) const {
  ncclResult_t state = ncclSuccess;
  MR_RETURN_IF_ERROR(Check(ncclCommGetAsyncError(comm, &state), what));
  MR_RETURN_IF_ERROR(Check(state, what));
  return state == ncclSuccess;
}

Status NcclCollective::AwaitReady(ncclComm_t comm, Time end, const char* what) {
  return Await(end, what, [&] { return Ready(comm, what); });
}

Status NcclCollective::AwaitStream(Time end) {
  return Await(end, "add", [&]() -> Result<bool> {
    const cudaError_t state = cudaStreamQuery(options_.stream);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) return Check(state, "add");
    for (const Comm& pair : pairs_) MR_RETURN_IF_ERROR(Ready(pair.get(), "add").status());
    return false;
  });
}

// ---- connecting

Status NcclCollective::Connect() {
  Status connected = ConnectWithin(SteadyClock().Now() + options_.group.join_within);
  return connected.ok() ? connected : Fail(std::move(connected));
}

Status NcclCollective::ConnectWithin(Time end) {
  if (size() == 1) return OkStatus();
  MR_RETURN_IF_ERROR(Check(cudaSetDevice(options_.cuda_device), "use its device"));
  // The sum distributes rank 0's id: the others add zeros, and a byte is exact in a float.
  ncclUniqueId id = {};
  if (rank() == 0) MR_RETURN_IF_ERROR(Check(ncclGetUniqueId(&id), "make an id"));
  std::array<uint8_t, NCCL_UNIQUE_ID_BYTES> raw;
  static_assert(sizeof id == sizeof raw);
  std::memcpy(raw.data(), &id, sizeof id);
  std::array<float, NCCL_UNIQUE_ID_BYTES> bytes;
  for (size_t i = 0; i < raw.size(); ++i) bytes[i] = raw[i];
  MR_RETURN_IF_ERROR(group_->AllReduceSum(bytes));
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<uint8_t>(bytes[i]);
  std::memcpy(&id, raw.data(), sizeof id);

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  const ncclResult_t begun = ncclCommInitRankConfig(&made, size(), id, rank(), &config);
  all_.reset(made);
  MR_RETURN_IF_ERROR(Check(begun, "connect"));
  MR_RETURN_IF_ERROR(AwaitReady(all_.get(), end, "connect"));
  for (int bit = 1; bit < size(); bit *= 2) {
    // Ranks whose numbers are equal except for this bit have one colour.
    ncclComm_t pair = nullptr;
    const ncclResult_t split = ncclCommSplit(all_.get(), rank() & ~bit, rank(), &pair, &config);
    MR_RETURN_IF_ERROR(Check(split, "pair up"));
    const Status whole = AwaitReady(all_.get(), end, "pair up");
    if (pair != nullptr) pairs_.emplace_back(pair);  // set only now
    MR_RETURN_IF_ERROR(whole);
    if (pair == nullptr) return Failed("pair up", "NCCL created no communicator");
    MR_RETURN_IF_ERROR(AwaitReady(pair, end, "pair up"));
  }
  return OkStatus();
}

// ---- sums

Status NcclCollective::AllReduceSum(std::span<float> values) {
  if (!status_.ok()) return status_;
  Status added = Sum(values);
  return added.ok() ? added : Fail(std::move(added));
}

Status NcclCollective::Sum(std::span<float> values) {
  const Time end = SteadyClock().Now() + options_.group.deadline;
  MR_RETURN_IF_ERROR(Agree(values.size()));
  if (size() == 1 || values.empty()) return OkStatus();
  MR_RETURN_IF_ERROR(Check(cudaSetDevice(options_.cuda_device), "use its device"));
  for (const Comm& pair : pairs_) {
    MR_RETURN_IF_ERROR(Check(ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat,
                                           ncclSum, pair.get(), options_.stream),
                             "add"));
    MR_RETURN_IF_ERROR(AwaitReady(pair.get(), end, "add"));  // in the stream, not yet finished
  }
  MR_RETURN_IF_ERROR(AwaitStream(end));
  return Agree(values.size());  // no rank leaves while another's device is still working
}

// If counts differ, at least one of them is not the mean, and its rank ends the group.
Status NcclCollective::Agree(size_t count) {
  std::array<float, 3> digits;
  for (size_t i = 0; i < digits.size(); ++i) {
    digits[i] = static_cast<float>(count >> (20 * i) & 0xfffff);
  }
  auto sums = digits;
  MR_RETURN_IF_ERROR(group_->AllReduceSum(sums));
  for (size_t i = 0; i < digits.size(); ++i) {
    if (sums[i] == digits[i] * static_cast<float>(size())) continue;
    return Internal(fmt::format("rank {} of {} adds {} values, other ranks a different number",
                                rank(), size(), count));
  }
  return OkStatus();
}

Status NcclCollective::Fail(Status why) {
  status_ = why;
  group_->Abort(why.message());
  pairs_.clear();  // ends what is in the stream
  all_.reset();
  return why;
}

}  // namespace

Result<std::unique_ptr<Collective>> JoinNccl(const NcclOptions& options) {
  MR_ASSIGN_OR_RETURN(auto group, JoinSameHost(options.group));
  auto made = std::make_unique<NcclCollective>(std::move(group), options);
  MR_RETURN_IF_ERROR(made->Connect());
  return std::unique_ptr<Collective>(std::move(made));
}

}  // namespace millrace::net
