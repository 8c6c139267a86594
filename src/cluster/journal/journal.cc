#include "cluster/journal/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "cluster/journal/journal_folder.h"
#include "cluster/journal/journal_segment.h"

namespace millrace::cluster {
namespace {

// A snapshot is written in pieces of about this size.
constexpr size_t kSnapshotPieceBytes = 1u << 20;
constexpr int kSnapshotTries = 4;
constexpr int kReplayTries = 8;

// A predecessor that has not noticed its successor may finish a compaction while we read: files
// disappear, and a listing made meanwhile may name neither the old files nor their replacement. If
// the listing is the same before and after the read, nothing was left out. The predecessor
// terminates, so this loop does.
Result<JournalReplay> ReplayWhole(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(auto before, JournalSegments(folder));
  for (int tries = 0; tries < kReplayTries; ++tries) {
    Result<JournalReplay> replay = ReplayJournal(folder);
    MR_ASSIGN_OR_RETURN(auto after, JournalSegments(folder));
    if (after == before && replay.status().code() != StatusCode::kNotFound) return replay;
    before = std::move(after);
  }
  return Unavailable(
      fmt::format("the journal in {} kept changing while it was read; try again", folder));
}

}  // namespace

Journal::Journal(JournalOwnership ownership, JournalOptions options, const Clock& clock)
    : ownership_(std::move(ownership)), options_(std::move(options)), clock_(clock) {}

Journal::~Journal() = default;

Result<std::unique_ptr<Journal>> Journal::Open(const JournalOptions& options, const Clock& clock,
                                               JournalReplay& replay) {
  MR_ASSIGN_OR_RETURN(auto ownership, JournalOwnership::Take(options.folder, options.owner));
  MR_ASSIGN_OR_RETURN(replay, ReplayWhole(options.folder));
  MR_ASSIGN_OR_RETURN(const auto segments, JournalSegments(options.folder));
  std::unique_ptr<Journal> journal(new Journal(std::move(ownership), options, clock));
  MutexLock guard(journal->mutex_);
  if (!segments.empty()) journal->number_ = segments.rbegin()->first;
  RemoveHalfWritten(options.folder);
  if (!replay.damage.empty()) {
    MR_LOG(error,
           "the journal in {} is damaged: {}; continuing from the records before the damage, the "
           "files are kept as *.damaged",
           options.folder, replay.damage);
    for (const auto& [number, path] : segments) {
      MR_RETURN_IF_ERROR(MoveFile(path, path + ".damaged"));
    }
  }
  journal->state_ = replay.state;
  for (const auto& [id, request] : replay.state.requests()) {
    const bool stream = !request.accept.joins;
    if (stream && replay.state.StreamFinished(id)) journal->finished_.emplace_back(clock.Now(), id);
  }
  MR_RETURN_IF_ERROR(journal->Compact());
  return journal;
}

Status Journal::Append(std::span<const JournalRecord> records) {
  MutexLock lock(mutex_);
  MR_RETURN_IF_ERROR(MakeRoom(lock));
  Status fits;
  for (const JournalRecord& record : records) {
    fits = ApplyAndFrame(record);
    if (!fits.ok()) break;
  }
  const std::shared_ptr<Batch> mine = pending_;
  while (mine && !mine->written) {
    if (writing_) {
      written_.wait(lock);
    } else {
      WriteBatch();
    }
  }
  return fits.ok() && mine ? mine->status : fits;
}

Status Journal::Probe() {
  MutexLock lock(mutex_);
  std::error_code error;
  if (!std::filesystem::exists(JournalSegmentPath(options_.folder, number_), error)) broken_ = true;
  return MakeRoom(lock);
}

bool Journal::lost() const {
  MutexLock lock(mutex_);
  return !lost_.ok();
}

bool Journal::Holds(RequestId request) const {
  MutexLock lock(mutex_);
  return state_.requests().contains(request);
}

// Ensures that `file_` is neither full nor torn.
Status Journal::MakeRoom(MutexLock& lock) {
  while (lost_.ok() && (broken_ || file_bytes_ >= options_.segment_bytes)) {
    if (writing_ || pending_) {
      written_.wait(lock);
      continue;
    }
    if (broken_ || bytes_since_snapshot_ >= snapshot_bytes_) return Compact();
    return StartSegment();
  }
  return lost_;
}

// Call it after a write and before acknowledging that write: a successor reads everything that was
// written before this check started to fail.
Status Journal::CheckOwnership() const {
  if (options_.leads && !options_.leads()) {
    return Unavailable("this controller is no longer the leader");
  }
  return ownership_.Check();
}

// Returns why it was lost first.
Status Journal::Lose(const Status& why) {
  if (!lost_.ok()) return lost_;
  lost_ = why;
  if (options_.on_lost) options_.on_lost(why);
  return lost_;
}

Status Journal::ApplyAndFrame(const JournalRecord& record) {
  if (std::holds_alternative<JournalSnapshotEnd>(record)) {
    return InvalidArgument("this kind of record cannot be appended");
  }
  std::string frame = FrameJournalRecord(record, number_, next_index_);
  if (frame.size() > kJournalRecordBytesMax) {
    return InvalidArgument(fmt::format("the record has {} bytes; the limit is {}", frame.size(),
                                       kJournalRecordBytesMax));
  }
  if (Status fits = state_.Apply(record); !fits.ok()) return InvalidArgument(fits.message());
  if (!pending_) pending_ = std::make_shared<Batch>();
  ++next_index_;
  file_bytes_ += frame.size();
  bytes_since_snapshot_ += frame.size();
  pending_->bytes += frame;
  ++pending_->records;
  if (const auto* end = std::get_if<JournalFinished>(&record)) RememberFinished(end->request);
  const auto* last = std::get_if<JournalTokens>(&record);
  if (last != nullptr && last->finish_reason) RememberFinished(last->request);
  return OkStatus();
}

// Writes the pending batch for all waiting threads. Other threads may append to the next batch
// meanwhile.
void Journal::WriteBatch() {
  const std::shared_ptr<Batch> batch = std::move(pending_);
  pending_.reset();
  if (broken_) {
    batch->status = lost_.ok() ? Unavailable("an earlier write to the journal failed") : lost_;
  } else {
    writing_ = true;
    JournalFile& file = *file_;
    mutex_.unlock();
    Status ours = CheckOwnership();  // never record ends of requests that a successor now runs
    Status status = ours.ok() ? file.Write(batch->bytes) : ours;
    if (status.ok() && options_.sync == JournalSync::kAlways) status = file.Sync();
    if (ours.ok()) ours = CheckOwnership();
    mutex_.lock();
    writing_ = false;
    if (!ours.ok()) status = Lose(ours);
    batch->status = status;
    broken_ = !status.ok();
    stats_.records += batch->records;
    ++stats_.writes;
  }
  batch->written = true;
  written_.notify_all();
}

Status Journal::StartSegment() {
  const uint64_t number = number_ + 1;
  Result<JournalFile> created = JournalFile::Create(JournalSegmentPath(options_.folder, number));
  if (created.status().code() == StatusCode::kFailedPrecondition) {
    broken_ = true;  // half written, or an earlier leader's: a snapshot gets a higher number
    return Unavailable(created.status().message());
  }
  MR_ASSIGN_OR_RETURN(JournalFile file, std::move(created));
  MR_RETURN_IF_ERROR(file.Write(EncodeSegmentHeader({.number = number})));
  if (options_.sync == JournalSync::kAlways) {
    MR_RETURN_IF_ERROR(file.Sync());
    MR_RETURN_IF_ERROR(SyncFolder(options_.folder));
  }
  WriteNewestSegment(options_.folder, number);
  file_ = std::make_unique<JournalFile>(std::move(file));
  number_ = number;
  next_index_ = 0;
  file_bytes_ = kJournalSegmentHeaderBytes;
  bytes_since_snapshot_ += kJournalSegmentHeaderBytes;
  broken_ = false;
  return OkStatus();
}

// Writes the whole state into a segment that replaces all segments before it. An earlier leader may
// be creating a file with the same number; it creates none with a higher number. That holds because
// the number is chosen before the ownership check. A successor chooses its number only when our
// check already fails, so none of our numbers is higher than the successor's.
Status Journal::Compact() {
  ForgetOldFinished();
  Status written;
  uint64_t number = number_;
  for (int tries = 0; tries < kSnapshotTries; ++tries) {
    MR_ASSIGN_OR_RETURN(const auto segments, JournalSegments(options_.folder));
    if (!segments.empty()) number = std::max(number, segments.rbegin()->first);
    MR_RETURN_IF_ERROR(lost_);
    if (const Status ours = CheckOwnership(); !ours.ok()) return Lose(ours);
    written = WriteSnapshot(++number);
    if (written.code() != StatusCode::kFailedPrecondition) break;
  }
  MR_RETURN_IF_ERROR(written);
  number_ = number;
  bytes_since_snapshot_ = 0;
  ++stats_.compactions;
  // Appends go to a new segment from here on. Until it exists, none may go to an older segment.
  broken_ = true;
  MR_RETURN_IF_ERROR(StartSegment());
  MR_ASSIGN_OR_RETURN(const auto segments, JournalSegments(options_.folder));
  for (const auto& [old, old_path] : segments) {
    std::error_code ignored;  // it is not read any more, and the next compaction tries again
    if (old < number) std::filesystem::remove(old_path, ignored);
  }
  return OkStatus();
}

// The snapshot gets its final name only once it is complete and synced, so that the folder contains
// a complete journal at any moment. kFailedPrecondition: the number is taken.
Status Journal::WriteSnapshot(uint64_t number) {
  const uint64_t term = options_.owner ? options_.owner->term.value() : 0;
  const std::string half_written = JournalHalfWrittenPath(options_.folder, term);
  uint64_t bytes = 0;
  std::error_code ignored;
  std::filesystem::remove(half_written, ignored);
  MR_ASSIGN_OR_RETURN(JournalFile file, JournalFile::Create(half_written));
  std::string piece = EncodeSegmentHeader({.number = number, .snapshot = true});
  uint64_t index = 0;
  for (const JournalRecord& record : state_.Snapshot()) {
    piece += FrameJournalRecord(record, number, index++);
    if (piece.size() < kSnapshotPieceBytes) continue;
    MR_RETURN_IF_ERROR(file.Write(piece));
    bytes += piece.size();
    piece.clear();
  }
  MR_RETURN_IF_ERROR(file.Write(piece));
  MR_RETURN_IF_ERROR(file.Sync());
  MR_RETURN_IF_ERROR(MoveToNew(half_written, JournalSegmentPath(options_.folder, number)));
  snapshot_bytes_ = bytes + piece.size();
  return SyncFolder(options_.folder);
}

void Journal::RememberFinished(RequestId request) {
  const RequestId stream = state_.StreamOf(request);
  if (state_.StreamFinished(stream)) finished_.emplace_back(clock_.Now(), stream);
  ForgetOldFinished();
}

void Journal::ForgetOldFinished() {
  const Time now = clock_.Now();
  while (!finished_.empty() && now - finished_.front().first >= options_.retain_finished) {
    const RequestId stream = finished_.front().second;
    finished_.pop_front();
    // Another request may have joined the stream since, or the stream is already forgotten.
    if (state_.requests().contains(stream) && state_.StreamFinished(stream)) {
      state_.ForgetStream(stream);
    }
  }
}

Journal::Stats Journal::stats() const {
  MutexLock lock(mutex_);
  Stats stats = stats_;
  stats.bytes = snapshot_bytes_ + bytes_since_snapshot_;
  return stats;
}

}  // namespace millrace::cluster
