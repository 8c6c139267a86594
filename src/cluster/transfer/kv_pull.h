// KvPull: one pull of KV as a state machine. It decides what to ask of which source, how much at
// once and what to do with the answers. Its hosts carry requests and bytes: KvExchange, over a data
// plane or within a process, and the fault lab, over modelled links.
//
//   NextAsk -> the host sends it -> Answered (writes the bytes) -> ... -> ended -> Done
//
// KV is pulled first and then activations, because imported KV drops the activations that were
// cached for its blocks. KV that the worker itself holds is asked for first. A failure of KV ends
// the pull. A failure of activations only means that the stage lacks them, which Done tells.
//
// Owned by its host; one thread at a time. Pure: time is passed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/transfer/kv_rectangles.h"
#include "core/worker_messages.h"
#include "stage/stage.h"

namespace millrace::cluster {

// The worker that pulls.
struct KvReader {
  Incarnation incarnation;
  std::string host_id;
};

struct KvPullLimits {
  size_t chunk_bytes = kPullChunkBytes;   // of one answer
  size_t in_flight = 8;                   // asks at once
  Duration part = Duration::Seconds(10);  // until one answer
  // The message that exports the KV takes another connection than the ask, and may arrive later. A
  // source that does not know the KV yet is asked again, this often and this long.
  Duration export_poll = Duration::Millis(2);
  Duration export_delay = Duration::Seconds(2);
  // Pulls in the background, which no request waits for, have one ask in flight and rest after each
  // answer, because copying takes memory bandwidth and CPU time from the steps at both ends.
  int rest_to_part = 3;                   // a rest, in times of the part before
  Duration rest = Duration::Millis(2);    // a longer rest would idle a slow link
  Duration rests = Duration::Seconds(3);  // in all: the source holds the KV for a limited time
};

struct KvAsk {
  uint64_t part = 0;                 // names it to Answered
  const KvSource* source = nullptr;  // valid as long as the pull
  stage::TransferItem item;
  size_t bytes = 0;  // of the answer
};

class KvPull {
 public:
  // Pulls the pipeline's `layers` into `stage`; null: its weights were unloaded.
  KvPull(KvReader reader, LayerRange layers, std::shared_ptr<stage::Stage> stage, PullKv pull,
         const KvPullLimits& limits, Time now);

  // What to ask now; nullopt: nothing until an answer or NextTime.
  std::optional<KvAsk> NextAsk(Time now);
  // `bytes`: the item, if the status is OK. Answers to an unknown part, and after the end, are
  // dropped.
  void Answered(uint64_t part, const Status& status, std::span<const std::byte> bytes, Time now);
  // Ends the pull if an answer is overdue.
  void Tick(Time now);
  // The host is told to give up.
  void Cancel(const Status& reason);
  // When to call Tick and NextAsk next if no answer comes before.
  std::optional<Time> NextTime() const;

  bool ended() const { return status_.has_value(); }
  // REQUIRES: ended.
  PullDone Done(Time now) const;
  PipelineId pipeline() const { return pull_.pipeline; }

 private:
  struct Piece {
    size_t source = 0;
    stage::TransferItem item;
  };
  struct Asked {
    size_t piece = 0;
    Time since;
  };

  Result<std::vector<Piece>> PlanKv() const;
  void BeginActivations();
  bool AllAsked() const;
  bool MayAsk() const;  // from not_before_ on
  void End(Status status) { status_ = std::move(status); }
  // A failure to get what is being pulled now.
  void Fail(const Status& status);
  bool IsHere(const Piece& piece) const;
  void Rest(Duration part, Time now);

  const KvReader reader_;
  const LayerRange layers_;
  const std::shared_ptr<stage::Stage> stage_;
  const PullKv pull_;
  const KvPullLimits limits_;
  const Time started_;
  std::vector<Piece> pieces_;  // of KV, then of activations
  bool activations_ = false;   // being pulled
  size_t next_ = 0;            // in pieces_
  std::deque<size_t> again_;   // to be asked once more
  std::map<uint64_t, Asked> in_flight_;
  uint64_t asks_ = 0;
  Time not_before_;  // of the next ask
  Duration rested_;
  int64_t bytes_ = 0;
  std::optional<Status> status_;
};

}  // namespace millrace::cluster
