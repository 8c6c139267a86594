#include "cluster/kv_holdings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// Takes the same time wherever they differ.
bool SameNonce(const KvHandle& a, const KvHandle& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.nonce.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a.nonce[i] ^ b.nonce[i]));
  }
  return difference == 0;
}

}  // namespace

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
  return std::ranges::find(ended_, name) != ended_.end();
}

Status KvHoldings::Expose(LayerRange layers, std::shared_ptr<engine::Stage> stage,
                          const ExposeKv& message, Time now) {
  if (!stage || message.tokens < 0 || message.lease.ns <= 0) {
    ++counters_.refused;
    return InvalidArgument(fmt::format("{} tokens cannot be exposed for {} s", message.tokens,
                                       message.lease.seconds()));
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
                     .layers = layers,
                     .stage = std::move(stage),
                     .blocks = std::make_shared<std::vector<BlockIndex>>(message.blocks),
                     .tokens = message.tokens,
                     .until = now + message.lease};
  ++counters_.exposed;
  return OkStatus();
}

Status KvHoldings::Extend(Holding& holding, const ExposeKv& message, Time now) {
  if (holding.ending || message.tokens < holding.tokens) {
    ++counters_.replayed;
    return FailedPrecondition("a holding can only be extended, and not after its end");
  }
  const size_t others = blocks_ - holding.blocks->size();
  if (others + message.blocks.size() > limits_.blocks) {
    ++counters_.refused;
    return ResourceExhausted(fmt::format("{} blocks are exposed", blocks_));
  }
  blocks_ = others + message.blocks.size();
  // Pulls under way keep the table that they began with.
  if (*holding.blocks != message.blocks) {
    holding.blocks = std::make_shared<std::vector<BlockIndex>>(message.blocks);
  }
  holding.tokens = message.tokens;
  holding.until = std::max(holding.until, now + message.lease);
  ++counters_.extended;
  return OkStatus();
}

void KvHoldings::Release(const KvHandle& handle) {
  const Holding* holding = FindRight(handle);
  if (!holding) return;
  if (holding->ending) ++counters_.stale;
  End(holdings_.find(NameOf(handle)), HoldingState::kReleased);
}

void KvHoldings::CloseLane(LaneId lane) {
  for (auto it = holdings_.lower_bound({lane, 0});
       it != holdings_.end() && it->first.lane == lane;) {
    it = End(it, HoldingState::kReleased);
  }
}

Result<KvLoan> KvHoldings::BeginPull(const KvHandle& handle, const engine::KvBox& box, Time now) {
  Holding* holding = FindRight(handle);
  if (holding && (holding->ending || holding->until <= now)) {
    ++counters_.stale;
    holding = nullptr;
  }
  if (!holding) return NotFound("no such KV is held here");
  const auto heads = holding->stage->kv_heads();
  const bool rows = box.layers.size() == 0 && box.layers.begin > holding->layers.begin &&
                    box.layers.end <= holding->layers.end && box.first_head == 0 &&
                    box.end_head == 0;
  const bool kv = box.layers.size() >= 1 && holding->layers.Contains(box.layers) &&
                  box.first_head >= heads.first && box.first_head < box.end_head &&
                  box.end_head <= heads.second;
  if (box.first_token < 0 || box.first_token >= box.end_token || (!rows && !kv)) {
    ++counters_.refused;
    return InvalidArgument(fmt::format(
        "layers [{}, {}), heads [{}, {}), tokens [{}, {}) are not within what this worker holds",
        box.layers.begin, box.layers.end, box.first_head, box.end_head, box.first_token,
        box.end_token));
  }
  if (box.end_token > holding->tokens) {
    ++counters_.refused;
    return NotFound(
        fmt::format("token {} is not exposed yet, {} are", box.end_token - 1, holding->tokens));
  }
  if (holding->pulls >= limits_.pulls_each) {
    ++counters_.refused;
    return ResourceExhausted(fmt::format("{} pulls from it are under way", holding->pulls));
  }
  ++holding->pulls;
  ++counters_.pulls_begun;
  const KvTicket ticket(next_ticket_++);
  pulls_.emplace(ticket, NameOf(handle));
  return KvLoan{ticket, handle.lane, holding->stage, holding->blocks};
}

Status KvHoldings::EndPull(KvTicket ticket) {
  const auto pull = pulls_.find(ticket);
  MR_CHECK(pull != pulls_.end()) << "a pull ends once";
  const auto holding = holdings_.find(pull->second);
  pulls_.erase(pull);
  ++counters_.pulls_ended;
  --holding->second.pulls;
  const auto ending = holding->second.ending;
  if (!ending) return OkStatus();
  ++counters_.taken_back;
  End(holding, *ending);
  return NotFound("this KV was taken back while it was read");
}

void KvHoldings::Sweep(Time now) {
  for (auto it = holdings_.begin(); it != holdings_.end();) {
    it = it->second.until > now ? std::next(it) : End(it, HoldingState::kExpired);
  }
}

KvHoldings::Map::iterator KvHoldings::End(Map::iterator holding, HoldingState how) {
  if (holding->second.pulls > 0) {
    holding->second.ending = holding->second.ending.value_or(how);
    return std::next(holding);
  }
  ++(how == HoldingState::kExpired ? counters_.expired : counters_.released);
  blocks_ -= holding->second.blocks->size();
  ended_.push_back(holding->first);
  if (ended_.size() > limits_.remembered) ended_.pop_front();
  return holdings_.erase(holding);
}

std::optional<HoldingState> KvHoldings::StateOf(const KvHandle& handle) const {
  const auto found = holdings_.find(NameOf(handle));
  if (found == holdings_.end() || !SameNonce(found->second.handle, handle)) return std::nullopt;
  if (found->second.pulls > 0) return HoldingState::kPulling;
  return found->second.tokens == 0 ? HoldingState::kComputing : HoldingState::kHeld;
}

void KvHoldings::CheckIntegrity() const {
  size_t blocks = 0, pulls = 0;
  for (const auto& [name, holding] : holdings_) {
    blocks += holding.blocks->size();
    pulls += holding.pulls;
    MR_CHECK(!holding.ending || holding.pulls > 0) << "an ended holding is kept for nobody";
    const auto here =
        std::ranges::count_if(pulls_, [&n = name](const auto& pull) { return pull.second == n; });
    MR_CHECK(std::cmp_equal(here, holding.pulls)) << "pulls are counted wrong";
  }
  MR_CHECK(blocks == blocks_ && blocks <= limits_.blocks);
  MR_CHECK(pulls == pulls_.size()) << "a pull reads from what has ended";
  MR_CHECK(holdings_.size() <= limits_.holdings && ended_.size() <= limits_.remembered);
}

}  // namespace millrace::cluster
