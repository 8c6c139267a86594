// Ownership of the journal: a successor takes it over from a leader that is stopped. Nothing that
// the old leader appends later is acknowledged or read.
#include "cluster/journal/journal_owner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/rng.h"
#include "base/testing/temp_folder.h"
#include "base/testing/test_scale.h"
#include "cluster/journal/journal.h"
#include "cluster/journal/journal_folder.h"

namespace millrace::cluster::testing {
namespace {

constexpr Duration kNever = Duration::Seconds(1e9);

JournalOptions OwnedOptions(const TempFolder& folder, const std::string& cluster, uint64_t term) {
  return {.folder = folder.path(),
          .segment_bytes = 600,
          .retain_finished = kNever,
          .owner = JournalOwner{cluster, Term(term)}};
}

struct Opened {
  std::unique_ptr<Journal> journal;
  JournalReplay replay;
  Status status;
};

Opened Open(const JournalOptions& options) {
  static const ManualClock clock;
  Opened opened;
  auto journal = Journal::Open(options, clock, opened.replay);
  opened.status = journal.status();
  if (journal.ok()) opened.journal = *std::move(journal);
  return opened;
}

JournalTokens Token(uint32_t position, TokenId token) {
  return {RequestId(1), 0, position, {token}};
}

std::vector<TokenId> TokensOf(const JournalReplay& replay) {
  const auto found = replay.state.requests().find(RequestId(1));
  if (found == replay.state.requests().end()) return {};
  return found->second.continuations[0].tokens;
}

TEST(JournalOwnership, ASuccessorTakesOverAndTheStoppedLeaderIsRefused) {
  TempFolder folder;
  Opened first = Open(OwnedOptions(folder, "a", 3));
  ASSERT_TRUE(first.journal->Append(JournalAccept{.request = RequestId(1)}).ok());
  ASSERT_TRUE(first.journal->Append(Token(0, 10)).ok());
  Opened second = Open(OwnedOptions(folder, "a", 7));
  ASSERT_TRUE(second.status.ok()) << second.status.ToString();
  EXPECT_EQ(TokensOf(second.replay), std::vector<TokenId>{10});
  ASSERT_TRUE(second.journal->Append(Token(1, 20)).ok());
  for (uint32_t i = 1; i < 50; ++i) {  // more than a segment
    const Status late = first.journal->Append(Token(i, 11));
    ASSERT_EQ(late.code(), StatusCode::kUnavailable);
    EXPECT_NE(late.message().find("a later leader"), std::string::npos) << late.message();
  }
  ASSERT_TRUE(second.journal->Append(Token(2, 21)).ok());
  const auto replay = ReplayJournal(folder.path());
  EXPECT_EQ(replay->damage, "");
  EXPECT_EQ(TokensOf(*replay), (std::vector<TokenId>{10, 20, 21}));
  // The end of the first does not end the second's ownership, and a third can still take over.
  first.journal.reset();
  EXPECT_EQ(Open(OwnedOptions(folder, "b", 99)).status.code(), StatusCode::kFailedPrecondition);
  Opened third = Open(OwnedOptions(folder, "a", 8));
  EXPECT_EQ(TokensOf(third.replay), (std::vector<TokenId>{10, 20, 21}));
  EXPECT_EQ(second.journal->Append(Token(3, 22)).code(), StatusCode::kUnavailable);
}

TEST(JournalOwnership, OnlyALaterLeaderOfTheSameClusterSucceeds) {
  TempFolder folder;
  Opened leader = Open(OwnedOptions(folder, "a", 5));
  EXPECT_EQ(Open(OwnedOptions(folder, "a", 4)).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open(OwnedOptions(folder, "a", 5)).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open(OwnedOptions(folder, "b", 6)).status.code(), StatusCode::kFailedPrecondition);
  JournalOptions without_owner = OwnedOptions(folder, "a", 6);
  without_owner.owner.reset();
  EXPECT_EQ(Open(without_owner).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open(OwnedOptions(folder, "../a", 6)).status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(leader.journal->Append(JournalAccept{.request = RequestId(1)}).ok());
  leader.journal.reset();
  // The folder is not locked now. An earlier leader is still refused, another cluster is not.
  EXPECT_EQ(Open(OwnedOptions(folder, "a", 4)).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open(OwnedOptions(folder, "b", 1)).replay.state.requests().size(), 1u);
  EXPECT_TRUE(Open(without_owner).status.ok());
  EXPECT_TRUE(Open(OwnedOptions(folder, "a", 4)).status.ok());
}

TEST(JournalOwnership, AfterItsTermALeaderAcknowledgesNothing) {
  TempFolder folder;
  std::atomic<bool> leads = true;
  JournalOptions options = OwnedOptions(folder, "a", 5);
  options.leads = [&leads] { return leads.load(); };
  int told = 0;
  options.on_lost = [&told](const Status&) { ++told; };
  Opened leader = Open(options);
  ASSERT_TRUE(leader.journal->Append(JournalAccept{.request = RequestId(1)}).ok());
  leads = false;
  EXPECT_EQ(leader.journal->Append(Token(0, 10)).code(), StatusCode::kUnavailable);
  leads = true;
  EXPECT_EQ(leader.journal->Append(Token(1, 11)).code(), StatusCode::kUnavailable)
      << "once lost, it stays lost";
  EXPECT_EQ(told, 1) << "once";
  leads = false;
  EXPECT_FALSE(Open(options).status.ok());
  const auto replay = ReplayJournal(folder.path());
  EXPECT_EQ(replay->state.requests().size(), 1u);
  EXPECT_EQ(TokensOf(*replay), std::vector<TokenId>{}) << "a successor does not read it either";
}

// A leader that wakes finishes what it was doing when it was stopped: it may create a file with the
// next number, or write whole snapshots. None of these files is read.
TEST(JournalOwnership, FilesOfAWokenLeaderAreIgnored) {
  TempFolder folder;
  Opened first = Open(OwnedOptions(folder, "a", 3));
  ASSERT_TRUE(first.journal->Append(JournalAccept{.request = RequestId(1)}).ok());
  const uint64_t last = JournalSegments(folder.path())->rbegin()->first;
  TempFolder other;  // where the woken leader's snapshot comes from
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::copy(file.path(), other.path() + "/" + file.path().filename().string());
  }
  Open(OwnedOptions(other, "a", 4)).journal.reset();
  Opened second = Open(OwnedOptions(folder, "a", 7));
  ASSERT_TRUE(second.journal->Append(Token(0, 20)).ok());
  for (uint32_t i = 1; JournalSegments(folder.path())->begin()->first <= last + 2; ++i) {
    ASSERT_TRUE(second.journal->Append(Token(i, 20)).ok());
    ASSERT_LT(i, 10'000u);
  }
  const size_t delivered = TokensOf(*ReplayJournal(folder.path())).size();
  const auto late = *JournalSegments(other.path());
  for (const auto& [number, path] : late) {
    std::filesystem::copy(path, JournalSegmentPath(folder.path(), number));
  }
  const auto replay = ReplayJournal(folder.path());
  EXPECT_EQ(replay->damage, "");
  EXPECT_EQ(TokensOf(*replay).size(), delivered);
  Opened third = Open(OwnedOptions(folder, "a", 9));
  EXPECT_EQ(TokensOf(third.replay).size(), delivered);
}

// Leaders that do not know of their successors append as fast as they can. Every acknowledged
// record of one leader is read by the next, and tokens of different leaders never interleave.
TEST(JournalOwnership, NothingAcknowledgedIsLostWhileOldLeadersKeepAppending) {
  for (int round = 0; round < 15 * TestScale(); ++round) {
    TempFolder folder;
    std::vector<std::unique_ptr<Journal>> journals;
    std::vector<std::thread> leaders;
    std::vector<std::vector<TokenId>> acknowledged(6);
    std::vector<std::vector<TokenId>> found;
    Rng rng(static_cast<uint64_t>(round));
    for (uint64_t term = 1; term <= acknowledged.size(); ++term) {
      Opened opened = Open(OwnedOptions(folder, "a", term));
      ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
      ASSERT_EQ(opened.replay.damage, "");
      found.push_back(TokensOf(opened.replay));
      Journal* journal = journals.emplace_back(std::move(opened.journal)).get();
      if (term == 1) {
        ASSERT_TRUE(journal->Append(JournalAccept{.request = RequestId(1)}).ok());
      }
      leaders.emplace_back(
          [journal, term, begin = found.back().size(), delivered = &acknowledged[term - 1]] {
            auto position = static_cast<uint32_t>(begin);
            while (journal->Append(Token(position, static_cast<TokenId>(term))).ok()) {
              delivered->push_back(static_cast<TokenId>(term));
              ++position;
            }
          });
      std::this_thread::sleep_for(std::chrono::microseconds(rng.Between(0, 3000)));
    }
    const Opened last = Open(OwnedOptions(folder, "a", 100));
    for (std::thread& leader : leaders) leader.join();
    found.push_back(TokensOf(last.replay));
    for (size_t i = 0; i < acknowledged.size(); ++i) {
      std::vector<TokenId> expected = found[i];
      expected.insert(expected.end(), acknowledged[i].begin(), acknowledged[i].end());
      std::vector<TokenId> read = found[i + 1];
      ASSERT_GE(read.size(), expected.size()) << "term " << i + 1 << " lost acknowledged tokens";
      read.resize(expected.size());
      EXPECT_EQ(read, expected);
    }
    EXPECT_EQ(TokensOf(*ReplayJournal(folder.path())), found.back());
  }
}

}  // namespace
}  // namespace millrace::cluster::testing
