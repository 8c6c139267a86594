#include "cluster/transfer/kv_exports.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// Constant time, wherever they differ.
bool SameNonce(const KvHandle& a, const KvHandle& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.nonce.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a.nonce[i] ^ b.nonce[i]));
  }
  return difference == 0;
}

}  // namespace

// Returns nullptr if the handle is not valid, and counts why.
KvExports::KvExport* KvExports::FindValid(const KvHandle& handle) {
  const auto found = exports_.find(NameOf(handle));
  if (found == exports_.end()) {
    ++(FindEnded(NameOf(handle)) ? counters_.stale : counters_.unknown);
    return nullptr;
  }
  if (!SameNonce(found->second.handle, handle)) {
    ++counters_.forged;
    return nullptr;
  }
  return &found->second;
}

const KvHandle* KvExports::FindEnded(const Name& name) const {
  const auto found = std::ranges::find(ended_, name, NameOf);
  return found == ended_.end() ? nullptr : &*found;
}

Status KvExports::Export(LayerRange layers, std::shared_ptr<stage::Stage> stage,
                         const ExportKv& message, Time now) {
  if (!stage || message.tokens < 0 || message.lease.ns <= 0) {
    ++counters_.refused;
    return InvalidArgument(
        fmt::format("cannot export {} tokens for {} s", message.tokens, message.lease.seconds()));
  }
  const Name name = NameOf(message.handle);
  if (exports_.contains(name)) {
    KvExport* held = FindValid(message.handle);
    if (!held) return FailedPrecondition("an export with this handle has another nonce");
    return Extend(*held, message, now);
  }
  if (FindEnded(name)) {
    ++counters_.replayed;
    return FailedPrecondition("this export has ended");
  }
  if (exports_.size() >= limits_.exports || blocks_ + message.blocks.size() > limits_.blocks) {
    ++counters_.refused;
    return ResourceExhausted(
        fmt::format("too many exports: {} with {} blocks", exports_.size(), blocks_));
  }
  blocks_ += message.blocks.size();
  exports_[name] = {.handle = message.handle,
                    .layers = layers,
                    .stage = std::move(stage),
                    .blocks = std::make_shared<std::vector<BlockIndex>>(message.blocks),
                    .tokens = message.tokens,
                    .until = now + message.lease};
  ++counters_.exposed;
  return OkStatus();
}

Status KvExports::Extend(KvExport& kv_export, const ExportKv& message, Time now) {
  if (kv_export.ending || message.tokens < kv_export.tokens) {
    ++counters_.replayed;
    return FailedPrecondition("an export cannot shrink, or be extended after its end");
  }
  const size_t others = blocks_ - kv_export.blocks->size();
  if (others + message.blocks.size() > limits_.blocks) {
    ++counters_.refused;
    return ResourceExhausted(fmt::format("too many blocks are exported: {}", blocks_));
  }
  blocks_ = others + message.blocks.size();
  // Pulls under way keep the table that they began with.
  if (*kv_export.blocks != message.blocks) {
    kv_export.blocks = std::make_shared<std::vector<BlockIndex>>(message.blocks);
  }
  kv_export.tokens = message.tokens;
  kv_export.until = std::max(kv_export.until, now + message.lease);
  ++counters_.extended;
  return OkStatus();
}

void KvExports::Release(const KvHandle& handle) {
  const KvExport* kv_export = FindValid(handle);
  if (!kv_export) return;
  if (kv_export->ending) ++counters_.stale;
  End(exports_.find(NameOf(handle)), ExportState::kReleased);
}

void KvExports::ClosePipeline(PipelineId pipeline) {
  for (auto it = exports_.lower_bound({pipeline, 0});
       it != exports_.end() && it->first.pipeline == pipeline;) {
    it = End(it, ExportState::kReleased);
  }
}

Status KvExports::CheckHeld(const KvExport& kv_export, const stage::KvBox& box) {
  const auto heads = kv_export.stage->kv_heads();
  if (box.layers.size() >= 1 && kv_export.layers.Contains(box.layers) &&
      box.first_head >= heads.first && box.first_head < box.end_head &&
      box.end_head <= heads.second && box.first_token >= 0 && box.first_token < box.end_token) {
    return OkStatus();
  }
  return InvalidArgument(
      fmt::format("this worker does not hold layers [{}, {}), heads [{}, {}), tokens [{}, {})",
                  box.layers.begin, box.layers.end, box.first_head, box.end_head, box.first_token,
                  box.end_token));
}

Status KvExports::CheckHeld(const KvExport& kv_export, const stage::ActivationRange& range) {
  if (range.layer > kv_export.layers.begin && range.layer <= kv_export.layers.end &&
      range.first_token >= 0 && range.first_token < range.end_token) {
    return OkStatus();
  }
  return InvalidArgument(
      fmt::format("this worker does not hold activations of tokens [{}, {}) that entered layer {}",
                  range.first_token, range.end_token, range.layer));
}

Result<KvReadLease> KvExports::BeginPull(const KvHandle& handle, const stage::TransferItem& item,
                                         Time now) {
  KvExport* kv_export = FindValid(handle);
  if (kv_export && (kv_export->ending || kv_export->until <= now)) {
    ++counters_.stale;
    return FailedPrecondition("the export has ended");
  }
  if (!kv_export) {
    const KvHandle* ended = FindEnded(NameOf(handle));
    if (ended && SameNonce(*ended, handle)) return FailedPrecondition("the export has ended");
    return NotFound("no such KV is exported here");
  }
  const Status held = std::visit([&](const auto& i) { return CheckHeld(*kv_export, i); }, item);
  if (!held.ok()) {
    ++counters_.refused;
    return held;
  }
  const int end_token = std::visit([](const auto& i) { return i.end_token; }, item);
  if (end_token > kv_export->tokens) {
    ++counters_.refused;
    return NotFound(fmt::format("token {} is not exported yet, only {} tokens are", end_token - 1,
                                kv_export->tokens));
  }
  if (kv_export->pulls >= limits_.pulls_each) {
    ++counters_.refused;
    return ResourceExhausted(
        fmt::format("{} pulls of this export are already running", kv_export->pulls));
  }
  ++kv_export->pulls;
  ++counters_.pulls_begun;
  const KvTicket ticket(next_ticket_++);
  pulls_.emplace(ticket, NameOf(handle));
  return KvReadLease{ticket, handle.pipeline, kv_export->stage, kv_export->blocks};
}

Status KvExports::EndPull(KvTicket ticket) {
  const auto pull = pulls_.find(ticket);
  MR_CHECK(pull != pulls_.end()) << "a pull ends once";
  const auto kv_export = exports_.find(pull->second);
  pulls_.erase(pull);
  ++counters_.pulls_ended;
  --kv_export->second.pulls;
  const auto ending = kv_export->second.ending;
  if (!ending) return OkStatus();
  ++counters_.taken_back;
  End(kv_export, *ending);
  return FailedPrecondition("the export ended while its KV was read");
}

void KvExports::Sweep(Time now) {
  for (auto it = exports_.begin(); it != exports_.end();) {
    it = it->second.until > now ? std::next(it) : End(it, ExportState::kExpired);
  }
}

KvExports::Map::iterator KvExports::End(Map::iterator kv_export, ExportState how) {
  if (kv_export->second.pulls > 0) {
    kv_export->second.ending = kv_export->second.ending.value_or(how);
    return std::next(kv_export);
  }
  ++(how == ExportState::kExpired ? counters_.expired : counters_.released);
  blocks_ -= kv_export->second.blocks->size();
  ended_.push_back(kv_export->second.handle);
  if (ended_.size() > limits_.remembered) ended_.pop_front();
  return exports_.erase(kv_export);
}

std::optional<ExportState> KvExports::StateOf(const KvHandle& handle) const {
  const auto found = exports_.find(NameOf(handle));
  if (found == exports_.end() || !SameNonce(found->second.handle, handle)) return std::nullopt;
  if (found->second.pulls > 0) return ExportState::kPulling;
  return found->second.tokens == 0 ? ExportState::kComputing : ExportState::kHeld;
}

void KvExports::CheckIntegrity() const {
  size_t blocks = 0, pulls = 0;
  for (const auto& [name, kv_export] : exports_) {
    blocks += kv_export.blocks->size();
    pulls += kv_export.pulls;
    MR_CHECK(!kv_export.ending || kv_export.pulls > 0) << "an ended export without pulls was kept";
    const auto here =
        std::ranges::count_if(pulls_, [&n = name](const auto& pull) { return pull.second == n; });
    MR_CHECK(std::cmp_equal(here, kv_export.pulls)) << "wrong count of pulls";
  }
  MR_CHECK(blocks == blocks_ && blocks <= limits_.blocks);
  MR_CHECK(pulls == pulls_.size()) << "a pull reads from an ended export";
  MR_CHECK(exports_.size() <= limits_.exports && ended_.size() <= limits_.remembered);
}

}  // namespace millrace::cluster
