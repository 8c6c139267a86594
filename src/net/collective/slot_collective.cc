#include "net/collective/slot_collective.h"

#include <fmt/core.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include "net/collective/pairwise_sum.h"

namespace millrace::net {
namespace {

// Longer than the skew of ranks of equal speed, shorter than a time slice.
constexpr int64_t kSpinNs = 100'000;
// The longest delay until a sleeping rank notices that a peer has ended.
constexpr Duration kSliceOfSleep = Duration::Millis(10);
// From this many values per rank on, each rank adds only a part.
constexpr size_t kPartFloatsMin = 4096;
constexpr int kPartRanksMin = 4;

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");

void FutexWait(std::atomic<uint32_t>& word, uint32_t value, Duration most) {
  const timespec timeout{most.ns / 1'000'000'000, most.ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// With fewer CPUs than ranks, a spinning rank would keep the one that it waits for from running.
int64_t SpinNs(int size) { return sysconf(_SC_NPROCESSORS_ONLN) >= size ? kSpinNs : 0; }

// Ranks of one process that met through same_host_meeting map the memory at different addresses.
// ThreadSanitizer identifies memory by address and must be told that the ranks synchronise.
#ifdef __SANITIZE_THREAD__
void* PlaceOf(const SlotHeader& header) {
  static char places[256];
  return &places[header.incarnation % sizeof places];
}
void AnnotatePublish(const SlotHeader& header) {
  if (header.incarnation != 0) __tsan_release(PlaceOf(header));
}
void AnnotateReached(const SlotHeader& header) {
  if (header.incarnation != 0) __tsan_acquire(PlaceOf(header));
}
#else
void AnnotatePublish(const SlotHeader&) {}
void AnnotateReached(const SlotHeader&) {}
#endif

size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

size_t SlotBytes(int size, size_t slot_floats) {
  // Two slots for each rank and two for results.
  return RoundUp(sizeof(SlotHeader)) +
         2 * static_cast<size_t>(size + 1) * RoundUp(slot_floats * sizeof(float));
}

SlotCollective::SlotCollective(const Options& options, std::shared_ptr<void> memory)
    : options_(options),
      memory_(std::move(memory)),
      header_(*static_cast<SlotHeader*>(memory_.get())),
      spin_ns_(SpinNs(options.size)) {
  MR_CHECK(CheckRank(options.rank, options.size).ok()) << options.rank << " of " << options.size;
  MR_CHECK(options.slot_floats > 0);
}

SlotCollective::~SlotCollective() { GiveUp(); }

float* SlotCollective::Slot(int rank) const {
  const size_t slot = 2 * static_cast<size_t>(rank) + chunk_ % 2;
  return reinterpret_cast<float*>(static_cast<uint8_t*>(memory_.get()) +
                                  RoundUp(sizeof(SlotHeader)) +
                                  slot * RoundUp(options_.slot_floats * sizeof(float)));
}

Status SlotCollective::AllReduceSum(std::span<float> values) {
  if (!status_.ok()) return status_;
  if (header_.failed.load(std::memory_order_acquire) != 0) return Fail(FailedElsewhere());
  if (options_.size == 1) return OkStatus();
  const Time end = SteadyClock().Now() + options_.deadline;
  for (size_t first = 0; first < values.size(); first += options_.slot_floats) {
    const size_t count = std::min(options_.slot_floats, values.size() - first);
    Status reduced = ReduceChunk(values.subspan(first, count), values.size() - first, end);
    if (!reduced.ok()) return Fail(std::move(reduced));
  }
  return OkStatus();
}

Status SlotCollective::ReduceChunk(std::span<float> values, uint64_t left, Time end) {
  ++chunk_;
  const size_t bytes = values.size_bytes();
  SlotHeader::Rank& mine = header_.ranks[options_.rank];
  mine.left[chunk_ % 2].store(left, std::memory_order_relaxed);
  std::memcpy(Slot(options_.rank), values.data(), bytes);
  Publish(&SlotHeader::Rank::arrived);
  MR_RETURN_IF_ERROR(Await(&SlotHeader::Rank::arrived, end));
  for (int r = 0; r < options_.size; ++r) {
    const uint64_t theirs = header_.ranks[r].left[chunk_ % 2].load(std::memory_order_relaxed);
    if (theirs == left) continue;
    return Internal(fmt::format("ranks {} and {} of {} add {} and {} values", options_.rank, r,
                                options_.size, left, theirs));
  }
  if (options_.size < kPartRanksMin || values.size() < kPartFloatsMin) {
    AddParts(values, 0, values.size(), values.data());
    return OkStatus();
  }
  const size_t parts = static_cast<size_t>(options_.size),
               part = static_cast<size_t>(options_.rank);
  const size_t first = values.size() * part / parts;
  AddParts(values, first, values.size() * (part + 1) / parts - first, ResultSlot() + first);
  Publish(&SlotHeader::Rank::reduced);
  MR_RETURN_IF_ERROR(Await(&SlotHeader::Rank::reduced, end));
  std::memcpy(values.data(), ResultSlot(), bytes);
  return OkStatus();
}

// out[0, count) = the sum of all ranks' values [first, first + count).
void SlotCollective::AddParts(std::span<float> values, size_t first, size_t count,
                              float* out) const {
  const float* from[kCollectiveRanksMax];
  for (int r = 0; r < options_.size; ++r) {
    from[r] = (r == options_.rank ? values.data() : Slot(r)) + first;
  }
  PairwiseSum({from, static_cast<size_t>(options_.size)}, count, out);
}

void SlotCollective::Publish(Counter counter) {
  SlotHeader::Rank& mine = header_.ranks[options_.rank];
  AnnotatePublish(header_);
  // Dekker's algorithm with a sleeper, which announces that it sleeps and then checks the word.
  (mine.*counter).store(chunk_);
  if (mine.sleepers.load() != 0) FutexWake(mine.*counter);
}

bool SlotCollective::Reached(int rank, Counter counter) const {
  // A rank is at most one chunk ahead; the difference is correct across the wrap.
  const uint32_t theirs = (header_.ranks[rank].*counter).load(std::memory_order_acquire);
  if (static_cast<int32_t>(theirs - chunk_) < 0) return false;
  AnnotateReached(header_);
  return true;
}

Status SlotCollective::Await(Counter counter, Time end) {
  for (int r = 0; r < options_.size; ++r) MR_RETURN_IF_ERROR(AwaitRank(r, counter, end));
  return OkStatus();
}

Status SlotCollective::AwaitRank(int rank, Counter counter, Time end) {
  if (Reached(rank, counter)) return OkStatus();
  if (spin_ns_ != 0) {
    const Time stop = SteadyClock().Now() + Duration::Nanos(spin_ns_);
    do {
      for (int i = 0; i < 16; ++i) {
        if (Reached(rank, counter)) return OkStatus();
        Pause();
      }
    } while (SteadyClock().Now() < stop);
  }
  SlotHeader::Rank& peer = header_.ranks[rank];
  waits_.store(true, std::memory_order_relaxed);
  peer.sleepers.fetch_add(1);
  Status reached = SleepUntilReached(rank, counter, end);
  peer.sleepers.fetch_sub(1);
  waits_.store(false, std::memory_order_relaxed);
  return reached;
}

Status SlotCollective::SleepUntilReached(int rank, Counter counter, Time end) {
  std::atomic<uint32_t>& word = header_.ranks[rank].*counter;
  Status gone;
  for (;;) {
    const uint32_t seen = word.load();
    // Checked first: what a peer did before it left counts.
    if (Reached(rank, counter)) return OkStatus();
    if (header_.failed.load() != 0) return FailedElsewhere();
    if (!gone.ok()) return gone;
    const Time now = SteadyClock().Now();
    if (now >= end) {
      return Unavailable(fmt::format("rank {} of {} waited {:.3g} s for rank {}", options_.rank,
                                     options_.size, options_.deadline.seconds(), rank));
    }
    FutexWait(word, seen, std::min(kSliceOfSleep, end - now));
    gone = CheckPeers();
  }
}

Status SlotCollective::FailedElsewhere() const {
  {
    MutexLock lock(abort_mutex_);
    if (!abort_reason_.empty()) return Unavailable(abort_reason_);
  }
  return Unavailable(fmt::format("rank {} of {} ended the collective",
                                 header_.failed.load(std::memory_order_acquire) - 1,
                                 options_.size));
}

Status SlotCollective::Fail(Status why) {
  status_ = why;
  GiveUp();
  return why;
}

void SlotCollective::Abort(std::string_view why) {
  {
    MutexLock lock(abort_mutex_);
    if (abort_reason_.empty()) abort_reason_ = fmt::format("aborted: {}", why);
  }
  GiveUp();
}

void SlotCollective::GiveUp() {
  uint32_t none = 0;
  header_.failed.compare_exchange_strong(none, 1 + static_cast<uint32_t>(options_.rank));
  for (int r = 0; r < options_.size; ++r) {
    FutexWake(header_.ranks[r].arrived);
    FutexWake(header_.ranks[r].reduced);
  }
}

}  // namespace millrace::net
