#include "cluster/kv_holdings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {

bool SameNonce(const KvHandle& a, const KvHandle& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.nonce.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a.nonce[i] ^ b.nonce[i]));
  }
  return difference == 0;
}

// Counts what is wrong with it when it is not found.
KvHoldings::Holding* KvHoldings::FindRight(const KvHandle& handle) {
  const auto found = holdings_.find(NameOf(handle));
  if (found == holdings_.end()) {
    ++(HasEnded(NameOf(handle)) ? counters_.stale : counters_.unknown);
    return nullptr;
  }
  if (!SameNonce(found->second.handle, handle)) {
    ++counters_.forged;
    return nullptr;
  }
  return &found->second;
}

bool KvHoldings::HasEnded(const Name& name) const {
  return std::ranges::find(ended_names_, name) != ended_names_.end();
}

Status KvHoldings::Expose(const ExposeKv& message, int block_size, Time now) {
  const int64_t slots = std::ssize(message.blocks) * block_size;
  if (message.tokens < 0 || message.tokens > slots || message.lease.ns <= 0) {
    ++counters_.refused;
    return InvalidArgument(fmt::format("{} tokens cannot be exposed in {} slots for {} s",
                                       message.tokens, slots, message.lease.seconds()));
  }
  const Name name = NameOf(message.handle);
  if (holdings_.contains(name)) {
    Holding* held = FindRight(message.handle);
    if (!held) return FailedPrecondition("a holding of this name has another nonce");
    return Extend(*held, message, now);
  }
  if (HasEnded(name)) {
    ++counters_.replayed;
    return FailedPrecondition("this holding has ended");
  }
  if (holdings_.size() >= limits_.holdings || blocks_ + message.blocks.size() > limits_.blocks) {
    ++counters_.refused;
    return ResourceExhausted(
        fmt::format("{} holdings of {} blocks are exposed", holdings_.size(), blocks_));
  }
  blocks_ += message.blocks.size();
  holdings_[name] = {.handle = message.handle,
                     .blocks = std::make_shared<std::vector<BlockIndex>>(message.blocks),
                     .tokens = message.tokens,
                     .until = now + message.lease};
  ++counters_.exposed;
  return OkStatus();
}

Status KvHoldings::Extend(Holding& holding, const ExposeKv& message, Time now) {
  const std::vector<BlockIndex>& before = *holding.blocks;
  const bool more = message.tokens >= holding.tokens && message.blocks.size() >= before.size() &&
                    std::equal(before.begin(), before.end(), message.blocks.begin());
  if (holding.ending || !more) {
    ++counters_.replayed;
    return FailedPrecondition("a holding can only be extended, and not after its end");
  }
  const size_t added = message.blocks.size() - before.size();
  if (blocks_ + added > limits_.blocks) {
    ++counters_.refused;
    return ResourceExhausted(fmt::format("{} blocks are exposed", blocks_));
  }
  blocks_ += added;
  // Pulls under way keep the table that they began with.
  if (added > 0) holding.blocks = std::make_shared<std::vector<BlockIndex>>(message.blocks);
  holding.tokens = message.tokens;
  holding.until = std::max(holding.until, now + message.lease);
  ++counters_.extended;
  return OkStatus();
}

void KvHoldings::Release(const KvHandle& handle) {
  Holding* holding = FindRight(handle);
  if (!holding) return;
  if (holding->pulls > 0) {
    if (holding->ending) ++counters_.stale;
    holding->ending = holding->ending.value_or(HoldingState::kReleased);
  } else {
    Finish(holdings_.find(NameOf(handle)), HoldingState::kReleased);
  }
}

void KvHoldings::CloseLane(LaneId lane) {
  for (auto it = holdings_.lower_bound({lane, 0});
       it != holdings_.end() && it->first.lane == lane;) {
    if (it->second.pulls == 0) {
      it = Finish(it, HoldingState::kReleased);
      continue;
    }
    it->second.ending = it->second.ending.value_or(HoldingState::kReleased);
    ++it;
  }
}

Result<KvLoan> KvHoldings::BeginPull(const KvHandle& handle, int first_token, int end_token,
                                     Time now) {
  Holding* holding = FindRight(handle);
  if (holding && (holding->ending || holding->until <= now)) {
    ++counters_.stale;
    holding = nullptr;
  }
  if (!holding) return NotFound("no such KV is held here");
  if (first_token < 0 || first_token >= end_token) {
    ++counters_.refused;
    return InvalidArgument(fmt::format("[{}, {}) is no range of tokens", first_token, end_token));
  }
  if (end_token > holding->tokens) {
    ++counters_.refused;
    return Unavailable(
        fmt::format("token {} is not exposed, {} are", end_token - 1, holding->tokens));
  }
  if (holding->pulls >= limits_.pulls_each) {
    ++counters_.refused;
    return ResourceExhausted(fmt::format("{} pulls from it are under way", holding->pulls));
  }
  ++holding->pulls;
  ++counters_.pulls_begun;
  const KvTicket ticket(next_ticket_++);
  pulls_.emplace(ticket, NameOf(handle));
  return KvLoan{ticket, handle.lane, holding->blocks};
}

void KvHoldings::EndPull(KvTicket ticket) {
  const auto pull = pulls_.find(ticket);
  if (pull == pulls_.end()) return;
  const auto holding = holdings_.find(pull->second);
  pulls_.erase(pull);
  ++counters_.pulls_ended;
  if (--holding->second.pulls == 0 && holding->second.ending) {
    Finish(holding, *holding->second.ending);
  }
}

void KvHoldings::Sweep(Time now) {
  for (auto it = holdings_.begin(); it != holdings_.end();) {
    Holding& holding = it->second;
    if (holding.until > now || (holding.pulls > 0 && holding.ending)) {
      ++it;
    } else if (holding.pulls > 0) {
      holding.ending = HoldingState::kExpired;
      ++it;
    } else {
      it = Finish(it, HoldingState::kExpired);
    }
  }
}

std::optional<Time> KvHoldings::NextExpiry() const {
  std::optional<Time> next;
  for (const auto& [name, holding] : holdings_) {
    if (holding.ending) continue;
    if (!next || holding.until < *next) next = holding.until;
  }
  return next;
}

KvHoldings::Map::iterator KvHoldings::Finish(Map::iterator holding, HoldingState how) {
  ++(how == HoldingState::kExpired ? counters_.expired : counters_.released);
  blocks_ -= holding->second.blocks->size();
  ended_.push_back({holding->second.handle, how});
  ended_names_.push_back(holding->first);
  if (ended_names_.size() > limits_.remembered) ended_names_.pop_front();
  return holdings_.erase(holding);
}

void KvHoldings::TakeEnded(std::vector<EndedHolding>& ended) {
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

std::optional<HoldingState> KvHoldings::StateOf(const KvHandle& handle) const {
  const auto found = holdings_.find(NameOf(handle));
  if (found == holdings_.end() || !SameNonce(found->second.handle, handle)) return std::nullopt;
  if (found->second.pulls > 0) return HoldingState::kPulling;
  return found->second.tokens == 0 ? HoldingState::kComputing : HoldingState::kHeld;
}

bool KvHoldings::Reading(LaneId lane) const {
  return std::ranges::any_of(pulls_, [&](const auto& pull) { return pull.second.lane == lane; });
}

void KvHoldings::CheckIntegrity() const {
  size_t blocks = 0, pulls = 0;
  for (const auto& [name, holding] : holdings_) {
    blocks += holding.blocks->size();
    pulls += holding.pulls;
    MR_CHECK(!holding.ending || holding.pulls > 0) << "an ended holding is kept for nobody";
    const auto here =
        std::ranges::count_if(pulls_, [&](const auto& pull) { return pull.second == name; });
    MR_CHECK(std::cmp_equal(here, holding.pulls)) << "pulls are counted wrong";
  }
  MR_CHECK(blocks == blocks_ && blocks <= limits_.blocks);
  MR_CHECK(pulls == pulls_.size()) << "a pull reads from what has ended";
  MR_CHECK(holdings_.size() <= limits_.holdings && ended_names_.size() <= limits_.remembered);
}

}  // namespace millrace::cluster
