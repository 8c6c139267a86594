#include "cluster/transfer/kv_pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {

KvPull::KvPull(KvReader reader, LayerRange layers, std::shared_ptr<stage::Stage> stage, PullKv pull,
               const KvPullLimits& limits, Time now)
    : reader_(std::move(reader)),
      layers_(layers),
      stage_(std::move(stage)),
      pull_(std::move(pull)),
      limits_(limits),
      started_(now),
      not_before_(now) {
  auto pieces = PlanKv();
  if (!pieces.ok()) {
    End(pieces.status());
  } else if (pieces->empty()) {
    BeginActivations();
  } else {
    pieces_ = std::move(*pieces);
  }
}

bool KvPull::IsHere(const Piece& piece) const {
  return pull_.sources[piece.source].from.incarnation == reader_.incarnation;
}

// Assigns each needed layer and head to one source, in boxes no larger than one answer. A new plan
// may leave layers on their worker; their KV comes first.
Result<std::vector<KvPull::Piece>> KvPull::PlanKv() const {
  if (!stage_) return FailedPrecondition("the pipeline's weights were unloaded");
  std::vector<Piece> pieces;
  if (pull_.first_token == pull_.end_token) return pieces;
  std::vector<KvHolder> holders;
  for (const KvSource& source : pull_.sources) {
    holders.push_back({source.layers, source.rank, source.from.host_id == reader_.host_id});
  }
  const auto [first, end] = stage_->kv_heads();
  MR_ASSIGN_OR_RETURN(const std::vector<KvPiece> cover,
                      CoverKv({layers_, first, end, pull_.first_token, pull_.end_token}, holders,
                              stage_->model_kv_heads()));
  const size_t unit = stage_->KvBytes({{layers_.begin, layers_.begin + 1}, first, first + 1, 0, 1});
  for (const KvPiece& piece : cover) {
    for (const stage::KvBox& box : SplitKv(piece.box, unit, limits_.chunk_bytes)) {
      pieces.push_back({piece.source, box});
    }
  }
  std::stable_partition(pieces.begin(), pieces.end(),
                        [this](const Piece& piece) { return IsHere(piece); });
  return pieces;
}

void KvPull::BeginActivations() {
  activations_ = true;
  pieces_.clear();
  next_ = 0;
  if (const auto wanted = ActivationsToPull(layers_, pull_, reader_.incarnation)) {
    const auto& [layer, first_token, end_token] = wanted->range;
    const int tokens = std::max(1, static_cast<int>(limits_.chunk_bytes / stage_->row_bytes()));
    for (int first = first_token; first < end_token; first += tokens) {
      const int end = std::min(first + tokens, end_token);
      pieces_.push_back({wanted->source, stage::ActivationRange{layer, first, end}});
    }
  }
  if (pieces_.empty()) End(OkStatus());
}

bool KvPull::AllAsked() const { return again_.empty() && next_ == pieces_.size(); }

bool KvPull::MayAsk() const {
  return !AllAsked() && in_flight_.size() < (pull_.background ? 1 : limits_.in_flight);
}

std::optional<KvAsk> KvPull::NextAsk(Time now) {
  if (ended() || now < not_before_ || !MayAsk()) return std::nullopt;
  size_t piece = next_;
  if (again_.empty()) {
    ++next_;
  } else {
    piece = again_.front();
    again_.pop_front();
  }
  in_flight_.emplace(++asks_, Asked{piece, now});
  const auto& [source, item] = pieces_[piece];
  return KvAsk{asks_, &pull_.sources[source], item, stage_->Bytes(item)};
}

void KvPull::Answered(uint64_t part, const Status& status, std::span<const std::byte> bytes,
                      Time now) {
  const auto asked = in_flight_.extract(part);
  if (!asked || ended()) return;
  const Piece& piece = pieces_[asked.mapped().piece];
  if (status.code() == StatusCode::kNotFound && now < started_ + limits_.export_delay) {
    again_.push_back(asked.mapped().piece);
    not_before_ = now + limits_.export_poll;
    return;
  }
  if (!status.ok()) return Fail(status);
  const size_t size = stage_->Bytes(piece.item);
  if (bytes.size() != size) {
    return Fail(DataLoss(fmt::format("{} bytes instead of {}", bytes.size(), size)));
  }
  const Status written = stage_->Write(pull_.pipeline, piece.item, pull_.blocks, bytes);
  if (!written.ok()) return Fail(written);
  if (!IsHere(piece)) {
    bytes_ += static_cast<int64_t>(size);
    if (pull_.background) Rest(now - asked.mapped().since, now);
  }
  if (!AllAsked() || !in_flight_.empty()) return;
  if (activations_) return End(OkStatus());
  BeginActivations();
}

void KvPull::Rest(Duration part, Time now) {
  const Duration left = limits_.rests - rested_;
  const Duration rest = std::min({Duration{part.ns * limits_.rest_to_part}, limits_.rest, left});
  rested_ = rested_ + rest;
  not_before_ = std::max(not_before_, now + rest);
}

void KvPull::Fail(const Status& status) { End(activations_ ? OkStatus() : status); }

void KvPull::Tick(Time now) {
  if (ended() || in_flight_.empty()) return;
  const Asked& oldest = in_flight_.begin()->second;  // asks are numbered in order of time
  if (now < oldest.since + limits_.part) return;
  Fail({StatusCode::kDeadlineExceeded,
        fmt::format("worker {} sent no answer for {:.1f} s",
                    pull_.sources[pieces_[oldest.piece].source].from.worker.value(),
                    limits_.part.seconds())});
}

void KvPull::Cancel(const Status& reason) {
  if (!ended()) End(reason);
}

std::optional<Time> KvPull::NextTime() const {
  if (ended()) return std::nullopt;
  if (in_flight_.empty()) return not_before_;  // something is left to ask
  const Time overdue = in_flight_.begin()->second.since + limits_.part;
  return MayAsk() ? std::min(not_before_, overdue) : overdue;
}

PullDone KvPull::Done(Time now) const {
  MR_CHECK(ended()) << "the pull is still running";
  PullDone done{.transfer = pull_.transfer,
                .status = *status_,
                .bytes = bytes_,
                .seconds = (now - started_).seconds()};
  done.activations = stage_ && stage_->HoldsActivations(
                                   pull_.pipeline,
                                   {layers_.end, pull_.first_token, pull_.end_token}, pull_.blocks);
  return done;
}

}  // namespace millrace::cluster
