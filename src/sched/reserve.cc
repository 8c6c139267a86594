// The reservations of the Orca policies. One for each sequence of a request, all of equal size;
// plain `orca` counts them (Algorithm 1), and a buddy allocator places them if the policy needs
// contiguous memory (vLLM section 6.1). The blocks themselves stay paged.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

int SchedulerImpl::RoundReservation(int blocks) const {
  return buddy_ ? BuddyAllocator::ChunkFor(blocks) : blocks;
}

// The slots that the policy promises a sequence; none if it promises nothing.
std::optional<int> SchedulerImpl::PromisedSlotsEach(const NewRequest& request,
                                                    int output_limit) const {
  const auto known = request.stop_after_prompt ? std::nullopt : request.known_output_tokens;
  return reservation_->SlotsFor({.prompt_tokens = static_cast<int>(request.prompt->size()),
                                 .output_tokens_max = output_limit,
                                 .known_output_tokens = known,
                                 .model_len_max = ModelLenMax()});
}

// The same in blocks, as reserved.
std::optional<int> SchedulerImpl::ReservedBlocksEach(const NewRequest& request,
                                                     int output_limit) const {
  const auto slots = PromisedSlotsEach(request, output_limit);
  if (!slots) return std::nullopt;
  return RoundReservation(kv_.BlocksFor(*slots));
}

// The same for a request that is admitted, or resumed with a longer output than predicted.
std::optional<int> SchedulerImpl::ReservationEach(const Request& request) const {
  auto each = ReservedBlocksEach(request.spec, request.output_limit);
  if (!each) return std::nullopt;
  for (const Sequence& s : request.sequences) {
    if (!s.live()) continue;
    *each = std::max(*each, RoundReservation(kv_.BlocksFor(request.TotalOf(s))));
  }
  return each;
}

Verdict SchedulerImpl::ReservationVerdict(const Request& request) const {
  const auto each = ReservationEach(request);
  if (!each) return {Verdict::Reason::kAdmitted};
  const int n = request.spec.params->n;
  const int unreserved = options_.num_blocks - reserved_blocks_;
  if (buddy_) {
    const int room = buddy_->Room(*each);
    if (room < n) return {Verdict::Reason::kChunks, *each, room, unreserved};
  } else if (n * *each > unreserved) {
    return {Verdict::Reason::kReservation, n * *each, unreserved};
  }
  return {Verdict::Reason::kAdmitted};
}

// Reserves `blocks_each` for every sequence. Returns false and changes nothing when there is no
// room.
bool SchedulerImpl::TakeReservation(Request& request, int blocks_each) {
  const int n = request.spec.params->n;
  const int blocks = n * RoundReservation(blocks_each);
  if (buddy_) {
    if (buddy_->Room(blocks_each) < n) return false;
    request.chunks.reserve(n);
    for (int i = 0; i < n; ++i) request.chunks.push_back(*buddy_->Allocate(blocks_each));
  } else if (reserved_blocks_ + blocks > options_.num_blocks) {
    return false;
  }
  request.reserved_blocks = blocks;
  reserved_blocks_ += blocks;
  return true;
}

void SchedulerImpl::TakeReservation(Request& request) {
  const auto each = ReservationEach(request);
  if (!each) return;
  MR_CHECK(TakeReservation(request, *each))
      << "admission counted wrong for request " << request.spec.id;
}

void SchedulerImpl::ReleaseReservation(Request& request) {
  reserved_blocks_ -= std::exchange(request.reserved_blocks, 0);
  for (const BuddyAllocator::Chunk& chunk : request.chunks) buddy_->Free(chunk);
  request.chunks.clear();
}

// Only a sequence longer than predicted outgrows its promise. It then gets a larger reservation,
// and the last requests in order are preempted for it.
bool SchedulerImpl::GrowReservation(Request& request, int blocks, StepRoom& room) {
  if (options_.kv_policy == KvPolicy::kPaged) return true;
  int held = blocks;
  for (const Sequence& s : request.sequences) held += static_cast<int>(s.table.size());
  if (held <= request.reserved_blocks) return true;
  // A block that sequences share was counted for each of them.
  CollectTables(request);
  held = blocks + kv_.CountDistinct(tables_);
  if (held <= request.reserved_blocks) return true;
  const int n = request.spec.params->n;
  const int before = request.reserved_blocks;
  while (true) {
    ReleaseReservation(request);
    if (TakeReservation(request, (held + n - 1) / n)) return true;
    MR_CHECK(TakeReservation(request, before / n)) << "the previous reservation must fit again";
    if (running_.back() == &request) return false;
    Preempt(*running_.back(), request, held - before);
    room.preempted = true;
  }
}

void SchedulerImpl::CheckReservations() const {
  int reserved = 0;
  std::vector<BuddyAllocator::Chunk> chunks;
  const auto count = [&](const Request& r) {
    reserved += r.reserved_blocks;
    int placed = 0;
    for (const BuddyAllocator::Chunk& chunk : r.chunks) placed += chunk.blocks;
    MR_CHECK(placed == (buddy_ ? r.reserved_blocks : 0))
        << "request " << r.spec.id << " reserves " << r.reserved_blocks << " blocks, " << placed
        << " of them placed";
    chunks.insert(chunks.end(), r.chunks.begin(), r.chunks.end());
  };
  for (const auto& [id, r] : requests_) count(*r);
  for (const auto& r : leaving_) count(*r);
  MR_CHECK(reserved == reserved_blocks_ && reserved <= options_.num_blocks)
      << reserved << " blocks reserved, recorded " << reserved_blocks_;
  if (!buddy_) return;
  buddy_->CheckIntegrity(chunks);
  MR_CHECK(buddy_->free_blocks() == options_.num_blocks - reserved_blocks_);
}

}  // namespace millrace::sched
