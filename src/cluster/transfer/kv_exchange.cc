#include "cluster/transfer/kv_exchange.h"

#include <utility>

#include "cluster/transfer/pull_answers.h"

namespace millrace::cluster {

void KvExchange::Export(LayerRange layers, std::shared_ptr<stage::Stage> stage,
                        const ExportKv& kv) {
  const Time now = clock_.Now();
  MutexLock lock(mutex_);
  exports_.Sweep(now);
  (void)exports_.Export(layers, std::move(stage), kv, now);  // counted; its pulls will fail
}

void KvExchange::Release(const KvHandle& handle) {
  MutexLock lock(mutex_);
  exports_.Release(handle);
}

void KvExchange::PipelineClosed(PipelineId pipeline) {
  MutexLock lock(mutex_);
  exports_.ClosePipeline(pipeline);
}

KvExchangeCounters KvExchange::counters() {
  MutexLock lock(mutex_);
  exports_.Sweep(clock_.Now());
  KvExchangeCounters counters = counters_;
  counters.exports = exports_.counters();
  counters.exposed = exports_.size();
  return counters;
}

// Reads without holding the lock.
Status KvExchange::Read(const KvHandle& handle, const stage::TransferItem& item,
                        const RoomFor& room) {
  MutexLock lock(mutex_);
  MR_ASSIGN_OR_RETURN(const KvReadLease lease, exports_.BeginPull(handle, item, clock_.Now()));
  lock.unlock();
  const size_t size = lease.stage->Bytes(item);
  const Status read = size > kPullChunkBytes
                          ? InvalidArgument("the item exceeds the limit of one pull")
                          : lease.Read(item, room(size));
  lock.lock();
  const Status held = exports_.EndPull(lease.ticket);
  return read.ok() ? held : read;
}

Status KvExchange::Serve(const KvHandle& handle, const stage::TransferItem& item,
                         const RoomFor& room) {
  size_t bytes = 0;
  Status read = Read(handle, item, [&](size_t size) {
    bytes = size;
    return room(size);
  });
  MutexLock lock(mutex_);
  ++(read.ok() ? counters_.served : counters_.refused);
  if (read.ok()) counters_.served_bytes += bytes;
  return read;
}

void KvExchange::Pull(LayerRange layers, std::shared_ptr<stage::Stage> stage, const PullKv& pull,
                      std::function<void(PullDone)> done) {
  Mailbox& puller = pull.background ? background_puller_ : puller_;
  puller.Put([this, layers, stage = std::move(stage), pull, done = std::move(done)] {
    PullDone result = Run(KvPull(link_.self, layers, stage, pull, limits_, clock_.Now()));
    {
      MutexLock lock(mutex_);
      ++(result.status.ok() ? counters_.pulled : counters_.failed);
      counters_.pulled_bytes += static_cast<uint64_t>(result.bytes);
    }
    done(std::move(result));
  });
}

PullDone KvExchange::Run(KvPull pull) {
  const auto answers = std::make_shared<PullAnswers>();
  while (true) {
    pull.Tick(clock_.Now());
    while (const auto ask = pull.NextAsk(clock_.Now())) Ask(*ask, answers);
    const std::optional<Time> next = pull.NextTime();
    if (!next) return pull.Done(clock_.Now());
    for (const PullAnswer& answer : answers->Wait(*next - clock_.Now())) {
      pull.Answered(answer.part, answer.status, answer.bytes(), clock_.Now());
    }
  }
}

void KvExchange::Ask(const KvAsk& ask, const std::shared_ptr<PullAnswers>& answers) {
  const PullBuffer buffer = buffers_.Take(ask.bytes);
  const KvSource& source = *ask.source;
  if (source.from.incarnation != link_.self.incarnation) {
    return link_.ask(source, ask.item, buffer.bytes,
                     [answers, buffer, part = ask.part](Status status, uint64_t bytes) {
                       answers->Add({part, std::move(status), buffer, bytes});
                     });
  }
  Status read = Read(source.handle, ask.item, [&](size_t) { return buffer.bytes; });
  if (read.ok()) {
    MutexLock lock(mutex_);
    counters_.copied_bytes += ask.bytes;
  }
  answers->Add({ask.part, std::move(read), buffer, ask.bytes});
}

}  // namespace millrace::cluster
