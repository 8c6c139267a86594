#include "sched/reservations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::sched {

Reservations::Reservations(const SchedulerOptions& options)
    : block_size_(options.block_size),
      num_blocks_(options.num_blocks),
      max_model_len_(options.max_model_len),
      reserves_(options.kv_policy != KvPolicy::kPaged),
      policy_(MakeReservationPolicy(options.kv_policy)) {
  if (policy_->contiguous()) buddy_.emplace(options.num_blocks);
}

int Reservations::BlocksFor(int tokens) const { return (tokens + block_size_ - 1) / block_size_; }

int Reservations::ModelLenMax() const {
  const int64_t blocks = buddy_ ? buddy_->chunk_max() : num_blocks_;
  return static_cast<int>(std::min<int64_t>(max_model_len_, blocks * block_size_));
}

int Reservations::RoundUp(int blocks) const {
  return buddy_ ? BuddyAllocator::ChunkFor(blocks) : blocks;
}

std::optional<int> Reservations::SlotsEach(const NewRequest& request, int output_limit) const {
  const auto known = request.stop_after_prompt ? std::nullopt : request.known_output_tokens;
  return policy_->SlotsFor({.prompt_tokens = static_cast<int>(request.prompt->size()),
                            .output_tokens_max = output_limit,
                            .known_output_tokens = known,
                            .model_len_max = ModelLenMax()});
}

// The same in blocks, as reserved.
std::optional<int> Reservations::BlocksEach(const NewRequest& request, int output_limit) const {
  const auto slots = SlotsEach(request, output_limit);
  if (!slots) return std::nullopt;
  return RoundUp(BlocksFor(*slots));
}

// The same for a request that is admitted, or resumed with a longer output than predicted.
std::optional<int> Reservations::BlocksEach(const Request& request) const {
  auto each = BlocksEach(request.spec, request.output_limit);
  if (!each) return std::nullopt;
  for (const Sequence& s : request.sequences) {
    if (s.live()) *each = std::max(*each, RoundUp(BlocksFor(request.TotalOf(s))));
  }
  return each;
}

// The most blocks that the request can hold at once. With a reservation: the most that it can
// become.
int Reservations::WorstCase(const NewRequest& request, int output_limit) const {
  const auto reserved = BlocksEach(request, output_limit);
  if (!reserved) return BlocksAtMost(request, output_limit, block_size_);
  const int each = BlocksFor(static_cast<int>(request.prompt->size()) + output_limit - 1);
  return request.params->n * std::max(*reserved, RoundUp(each));
}

Status Reservations::CheckFits(const NewRequest& request, int output_limit) const {
  const int prompt = static_cast<int>(request.prompt->size());
  const int n = request.params->n;
  const int needed =
      output_limit < 1 ? RoundUp(BlocksFor(prompt + 1)) : WorstCase(request, output_limit);
  if (output_limit >= 1 && needed <= num_blocks_) return OkStatus();
  return InvalidArgument(fmt::format(
      "{} sequence{} of {} prompt tokens and up to {} generated tokens need{} {} KV blocks of {} "
      "tokens{}, and there are {}; lower max_tokens or n, or start with more KV blocks",
      n, n == 1 ? "" : "s", prompt, std::max(output_limit, 1), n == 1 ? "s" : "", needed,
      block_size_, buddy_ ? " in runs of a power of two" : "", num_blocks_));
}

Verdict Reservations::Consider(const Request& request) const {
  const auto each = BlocksEach(request);
  if (!each) return {Verdict::Reason::kAdmitted};
  const int n = request.spec.params->n;
  const int unreserved = num_blocks_ - blocks_;
  if (buddy_) {
    const int room = buddy_->Room(*each);
    if (room < n) return {Verdict::Reason::kChunks, *each, room, unreserved};
  } else if (n * *each > unreserved) {
    return {Verdict::Reason::kReservation, n * *each, unreserved};
  }
  return {Verdict::Reason::kAdmitted};
}

bool Reservations::Take(Request& request, int blocks_each) {
  const int n = request.spec.params->n;
  const int blocks = n * RoundUp(blocks_each);
  if (buddy_) {
    if (buddy_->Room(blocks_each) < n) return false;
    request.chunks.reserve(n);
    for (int i = 0; i < n; ++i) request.chunks.push_back(*buddy_->Allocate(blocks_each));
  } else if (blocks_ + blocks > num_blocks_) {
    return false;
  }
  request.reserved_blocks = blocks;
  blocks_ += blocks;
  return true;
}

void Reservations::Take(Request& request) {
  const auto each = BlocksEach(request);
  if (!each) return;
  MR_CHECK(Take(request, *each)) << "admission counted wrong for request " << request.spec.id;
}

void Reservations::Release(Request& request) {
  blocks_ -= std::exchange(request.reserved_blocks, 0);
  for (const BuddyAllocator::Chunk& chunk : request.chunks) buddy_->Free(chunk);
  request.chunks.clear();
}

void Reservations::CheckIntegrity(std::span<const Request* const> requests) const {
  int reserved = 0;
  std::vector<BuddyAllocator::Chunk> chunks;
  for (const Request* r : requests) {
    reserved += r->reserved_blocks;
    int placed = 0;
    for (const BuddyAllocator::Chunk& chunk : r->chunks) placed += chunk.blocks;
    MR_CHECK(placed == (buddy_ ? r->reserved_blocks : 0))
        << "request " << r->spec.id << " reserves " << r->reserved_blocks << " blocks, " << placed
        << " of them placed";
    chunks.insert(chunks.end(), r->chunks.begin(), r->chunks.end());
  }
  MR_CHECK(reserved == blocks_ && reserved <= num_blocks_)
      << reserved << " blocks reserved, recorded " << blocks_;
  if (!buddy_) return;
  buddy_->CheckIntegrity(chunks);
  MR_CHECK(buddy_->free_blocks() == num_blocks_ - blocks_);
}

}  // namespace millrace::sched
