// The journal in its folder: rotation, compaction, kill -9, a full disk.
#include "cluster/journal/journal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/testing/temp_folder.h"
#include "base/testing/test_scale.h"
#include "cluster/journal/journal_folder.h"
#include "cluster/journal/journal_segment.h"
#include "cluster/journal/testing/journal_workload.h"

namespace millrace::cluster::testing {
namespace {

constexpr Duration kRetainForever = Duration::Seconds(1e9);

std::unique_ptr<Journal> Open(const JournalOptions& options, const Clock& clock,
                              JournalReplay& replay) {
  auto journal = Journal::Open(options, clock, replay);
  MR_CHECK(journal.ok()) << journal.status().ToString();
  return std::move(*journal);
}

TEST(JournalFolder, ReopeningAtAnyTimeRestoresTheState) {
  const ManualClock clock;
  for (int round = 0; round < 5 * TestScale(); ++round) {
    TempFolder folder;
    JournalWorkload workload(static_cast<uint64_t>(round));
    Rng rng(static_cast<uint64_t>(round) + 1000);
    JournalState model;
    const JournalOptions options{
        .folder = folder.path(), .segment_bytes = 700, .retain_finished = kRetainForever};
    for (int times = 0; times < 8; ++times) {
      JournalReplay replay;
      auto journal = Open(options, clock, replay);
      ASSERT_EQ(replay.damage, "");
      ASSERT_EQ(replay.state, model);
      for (int64_t i = rng.Between(0, 60); i > 0; --i) {
        const JournalRecord record = workload.Next();
        ASSERT_TRUE(journal->Append(record).ok());
        ASSERT_TRUE(model.Apply(record).ok());
      }
    }
  }
}

TEST(JournalFolder, AnotherFormatVersionIsNotOpened) {
  TempFolder folder;
  const ManualClock clock;
  const JournalOptions options{.folder = folder.path(), .retain_finished = kRetainForever};
  JournalReplay replay;
  Open(options, clock, replay);
  const auto segments = JournalSegments(folder.path()).value();
  ASSERT_FALSE(segments.empty());
  std::fstream file(segments.rbegin()->second, std::ios::in | std::ios::out | std::ios::binary);
  std::string header(20, '\0');
  file.read(header.data(), std::ssize(header));
  header[7] = '1';
  const uint32_t checksum = Crc32c(header);
  file.seekp(0);
  file << header;
  file.write(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  file.close();
  const auto opened = Journal::Open(options, clock, replay);
  EXPECT_EQ(opened.status().code(), StatusCode::kUnimplemented) << opened.status().ToString();
}

TEST(JournalFolder, FinishedRequestsAreForgottenAfterAWhileAndTheFolderStaysSmall) {
  TempFolder folder;
  ManualClock clock;
  const JournalOptions options{
      .folder = folder.path(), .segment_bytes = 16 << 10, .retain_finished = Duration::Seconds(10)};
  JournalReplay replay;
  auto journal = Open(options, clock, replay);
  const std::vector<TokenId> prompt(100, 7);
  ASSERT_TRUE(journal->Append(JournalAccept{.request = RequestId(1), .prompt = prompt}).ok());
  for (uint64_t id = 2; id < 2000; ++id) {
    clock.Advance(Duration::Millis(1000));
    ASSERT_TRUE(journal->Append(JournalAccept{.request = RequestId(id), .prompt = prompt}).ok());
    ASSERT_TRUE(journal->Append(JournalTokens{RequestId(id), 0, 0, {1}}).ok());
    ASSERT_TRUE(journal->Append(JournalFinished{RequestId(id), 0, "stop"}).ok());
  }
  EXPECT_GT(journal->stats().compactions, 10u);
  uintmax_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    bytes += file.file_size();
  }
  EXPECT_LT(bytes, 100u << 10);
  journal.reset();
  journal = Open(options, clock, replay);
  EXPECT_TRUE(replay.state.requests().contains(RequestId(1)))
      << "a live request is never forgotten";
  EXPECT_TRUE(replay.state.requests().contains(RequestId(1999)));
  EXPECT_EQ(replay.state.next_request(), RequestId(2000));
  clock.Advance(Duration::Seconds(11));
  journal.reset();
  journal = Open(options, clock, replay);  // compacts what it has just replayed
  journal.reset();
  EXPECT_EQ(ReplayJournal(folder.path())->state.next_request(), RequestId(2000))
      << "ids of forgotten requests are not reused";
}

TEST(JournalFolder, SeveralRecordsAreOneWrite) {
  TempFolder folder;
  const ManualClock clock;
  JournalReplay replay;
  auto journal = Open({.folder = folder.path(), .retain_finished = kRetainForever}, clock, replay);
  const std::vector<JournalRecord> records = {
      JournalAccept{.request = RequestId(1)}, JournalTokens{RequestId(1), 0, 0, {1}},
      JournalTokens{RequestId(1), 0, 5, {2}},  // does not fit
      JournalTokens{RequestId(1), 0, 1, {3}}};
  EXPECT_EQ(journal->Append(records).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(journal->stats().writes, 1u);
  EXPECT_EQ(journal->stats().records, 2u);
  EXPECT_TRUE(journal->Holds(RequestId(1)));
  EXPECT_FALSE(journal->Holds(RequestId(2)));
  EXPECT_TRUE(journal->Append(std::span(records).subspan(3)).ok());
  EXPECT_TRUE(journal->Append(std::span<const JournalRecord>()).ok()) << "an empty append succeeds";
  journal.reset();
  const auto read = ReplayJournal(folder.path());
  EXPECT_EQ(read->state.requests().at(RequestId(1)).continuations[0].tokens,
            (std::vector<TokenId>{1, 3}));
}

TEST(JournalFolder, ThreadsShareWritesAndKeepTheirOrder) {
  TempFolder folder;
  const SteadyClock clock;
  JournalReplay replay;
  auto journal = Open({.folder = folder.path(),
                       .sync = JournalSync::kAlways,
                       .segment_bytes = 8 << 10,
                       .retain_finished = kRetainForever},
                      clock, replay);
  constexpr int kThreads = 4;
  constexpr uint32_t kEach = 60;
  for (uint64_t id = 1; id <= kThreads; ++id) {
    ASSERT_TRUE(journal->Append(JournalAccept{.request = RequestId(id)}).ok());
  }
  std::vector<std::thread> threads;
  for (uint64_t id = 1; id <= kThreads; ++id) {
    threads.emplace_back([&, id] {
      for (uint32_t i = 0; i < kEach; ++i) {
        const auto token = static_cast<TokenId>(id * 1000 + i);
        ASSERT_TRUE(journal->Append(JournalTokens{RequestId(id), 0, i, {token}}).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(journal->stats().records, kThreads * (kEach + 1));
  journal.reset();
  const auto read = ReplayJournal(folder.path());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->damage, "");
  for (const auto& [id, request] : read->state.requests()) {
    ASSERT_EQ(request.continuations[0].tokens.size(), kEach);
    EXPECT_EQ(request.continuations[0].tokens.back(),
              static_cast<TokenId>(id.value() * 1000 + kEach - 1));
  }
}

// A child appends and reports each acknowledged record. It is killed while it does so.
TEST(JournalFolder, AcknowledgedRecordsSurviveKill9) {
  for (int round = 0; round < 6 * TestScale(); ++round) {
    TempFolder folder;
    int reports[2];
    ASSERT_EQ(::pipe(reports), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const SteadyClock clock;
      JournalReplay replay;
      auto journal =
          Open({.folder = folder.path(), .segment_bytes = 4096, .retain_finished = kRetainForever},
               clock, replay);
      JournalWorkload workload(static_cast<uint64_t>(round));
      while (journal->Append(workload.Next()).ok()) {
        if (::write(reports[1], "x", 1) != 1) break;
      }
      ::_exit(1);
    }
    ::close(reports[1]);
    uint64_t acknowledged = 0;
    char buffer[256];
    const uint64_t enough = 20 + 37 * static_cast<uint64_t>(round);
    while (acknowledged < enough) {
      const ssize_t n = ::read(reports[0], buffer, sizeof buffer);
      ASSERT_GT(n, 0);
      acknowledged += static_cast<uint64_t>(n);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (ssize_t n; (n = ::read(reports[0], buffer, sizeof buffer)) > 0;) {
      acknowledged += static_cast<uint64_t>(n);
    }
    ::close(reports[0]);
    const auto replay = ReplayJournal(folder.path());
    ASSERT_TRUE(replay.ok());
    EXPECT_EQ(replay->damage, "");
    // The state has the acknowledged records, or one more.
    JournalWorkload workload(static_cast<uint64_t>(round));
    JournalState model;
    for (uint64_t i = 0; i < acknowledged; ++i) ASSERT_TRUE(model.Apply(workload.Next()).ok());
    if (!(replay->state == model)) {
      ASSERT_TRUE(model.Apply(workload.Next()).ok());
      EXPECT_EQ(replay->state, model) << "after " << acknowledged << " records";
    }
  }
}

TEST(JournalFolder, AFailedWriteIsReportedAndNothingIsMissingAfterwards) {
  TempFolder folder;
  const ManualClock clock;
  JournalReplay replay;
  const JournalOptions options{.folder = folder.path(), .retain_finished = kRetainForever};
  auto journal = Open(options, clock, replay);
  ASSERT_TRUE(journal->Append(JournalAccept{.request = RequestId(1)}).ok());
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 300;
  ::setrlimit(RLIMIT_FSIZE, &small);
  uint32_t position = 0;
  Status status;
  while (status.ok() && position < 100) {
    status = journal->Append(JournalTokens{RequestId(1), 0, position, {1, 2, 3}});
    position += 3;
  }
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  small.rlim_cur = 50;  // too small for a snapshot too
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_FALSE(journal->Append(JournalTokens{RequestId(1), 0, position, {1, 2, 3}}).ok());
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old_handler);
  const Status again = journal->Append(JournalTokens{RequestId(1), 0, position, {4, 5, 6}});
  ASSERT_TRUE(again.ok()) << again.ToString();
  journal.reset();
  const auto read = ReplayJournal(folder.path());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->damage, "");
  const auto& tokens = read->state.requests().at(RequestId(1)).continuations[0].tokens;
  EXPECT_EQ(tokens.size(), position + 3);
  EXPECT_EQ(tokens.back(), 6);
}

// Several segments, one of which a test then damages.
class DamagedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    JournalReplay replay;
    auto journal = Open(options_, clock_, replay);
    // The request is large and never finishes, so snapshots are large and segments accumulate.
    ASSERT_TRUE(
        journal
            ->Append(JournalAccept{.request = RequestId(1), .prompt = std::vector<TokenId>(2000)})
            .ok());
    while (Segments().size() < 4) {
      ASSERT_TRUE(journal->Append(JournalTokens{RequestId(1), 0, count_++, {7}}).ok());
    }
  }
  std::map<uint64_t, std::string> Segments() { return *JournalSegments(folder_.path()); }
  size_t Tokens(const JournalReplay& replay) {
    const auto found = replay.state.requests().find(RequestId(1));
    return found == replay.state.requests().end() ? 0
                                                  : found->second.continuations[0].tokens.size();
  }

  TempFolder folder_;
  const ManualClock clock_{};
  const JournalOptions options_{
      .folder = folder_.path(), .segment_bytes = 1000, .retain_finished = kRetainForever};
  uint32_t count_ = 0;
};

TEST_F(DamagedFolder, NothingAfterADamagedSegmentIsUsed) {
  const auto segments = Segments();
  const std::string path = std::next(segments.begin(), 2)->second;
  std::string bytes = *ReadFile(path, 1 << 20);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
  JournalReplay replay;
  auto journal = Open(options_, clock_, replay);
  EXPECT_NE(replay.damage, "");
  EXPECT_GT(Tokens(replay), 0u);
  EXPECT_LT(Tokens(replay), count_);
  // The journal continues from there, and the damaged files are kept for inspection.
  ASSERT_TRUE(
      journal->Append(JournalTokens{RequestId(1), 0, static_cast<uint32_t>(Tokens(replay)), {8}})
          .ok());
  journal.reset();
  const size_t tokens = Tokens(replay);
  EXPECT_EQ(Tokens(*ReplayJournal(folder_.path())), tokens + 1);
  EXPECT_EQ(ReplayJournal(folder_.path())->damage, "");
  EXPECT_TRUE(std::filesystem::exists(path + ".damaged"));
}

TEST_F(DamagedFolder, AMissingSegmentIsFound) {
  const auto segments = Segments();
  std::filesystem::remove(std::next(segments.begin(), 2)->second);
  const auto replay = ReplayJournal(folder_.path());
  ASSERT_TRUE(replay.ok());
  EXPECT_NE(replay->damage, "");
  EXPECT_LT(Tokens(*replay), count_);
}

TEST_F(DamagedFolder, AMissingSegmentAtTheEndIsFoundToo) {
  const auto segments = Segments();
  std::filesystem::remove(segments.rbegin()->second);
  auto replay = ReplayJournal(folder_.path());
  ASSERT_TRUE(replay.ok());
  EXPECT_EQ(replay->damage, fmt::format("segment {} is missing", segments.rbegin()->first));
  EXPECT_GT(Tokens(*replay), 0u) << "what is there is read";
  {
    JournalReplay opened;
    const auto journal = Open(options_, clock_, opened);
    EXPECT_NE(opened.damage, "") << "which is logged";
  }
  EXPECT_EQ(ReplayJournal(folder_.path())->damage, "") << "it goes on from there";
  for (const auto& [number, path] : Segments()) std::filesystem::remove(path);
  EXPECT_NE(ReplayJournal(folder_.path())->damage, "");
  std::filesystem::remove(folder_.path() + "/newest");  // a journal of an earlier version
  EXPECT_EQ(ReplayJournal(folder_.path())->damage, "");
}

TEST_F(DamagedFolder, OnlyTheLastSegmentMayBeCutShort) {
  const auto segments = Segments();
  const std::string last = segments.rbegin()->second;
  std::filesystem::resize_file(last, std::filesystem::file_size(last) - 1);
  const auto torn = ReplayJournal(folder_.path());
  EXPECT_EQ(torn->damage, "");
  EXPECT_GT(torn->torn_bytes, 0u);
  EXPECT_EQ(Tokens(*torn), count_ - 1);
  const std::string middle = std::next(segments.begin(), 2)->second;
  std::filesystem::resize_file(middle, std::filesystem::file_size(middle) - 1);
  EXPECT_NE(ReplayJournal(folder_.path())->damage, "");
}

TEST_F(DamagedFolder, AStopBetweenASnapshotAndTheRemovalOfOldSegmentsIsHarmless) {
  const auto before = Segments();
  TempFolder kept;
  for (const auto& [number, path] : before) {
    std::filesystem::copy(path,
                          kept.path() + "/" + std::filesystem::path(path).filename().string());
  }
  JournalReplay replay;
  Open(options_, clock_, replay).reset();  // a new snapshot
  for (const auto& file : std::filesystem::directory_iterator(kept.path())) {
    std::filesystem::copy(file.path(), folder_.path(),
                          std::filesystem::copy_options::skip_existing);
  }
  std::ofstream(folder_.path() + "/snapshot.new") << "half of a snapshot";
  const auto again = ReplayJournal(folder_.path());
  EXPECT_EQ(again->damage, "");
  EXPECT_EQ(again->state, replay.state);
  EXPECT_EQ(Tokens(*again), count_);
}

TEST(JournalFolder, ASecondOwnerAndRecordsThatDoNotFitAreRefused) {
  TempFolder folder;
  const ManualClock clock;
  JournalReplay replay;
  auto journal = Open({.folder = folder.path()}, clock, replay);
  EXPECT_EQ(Journal::Open({.folder = folder.path()}, clock, replay).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(journal->Append(JournalTokens{RequestId(1), 0, 0, {1}}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(journal->Append(JournalSnapshotEnd{}).code(), StatusCode::kInvalidArgument);
  JournalAccept long_text{.request = RequestId(1)};
  long_text.external_id.resize(kJournalTextBytesMax + 1);
  EXPECT_EQ(journal->Append(long_text).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(ReplayJournal(folder.path() + "/nowhere")->state.requests().empty());
}

}  // namespace
}  // namespace millrace::cluster::testing
