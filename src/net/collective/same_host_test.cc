// Tests of ranks that are processes of their own.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "net/collective/same_host_collective.h"
#include "net/collective/testing_meeting.h"

namespace millrace::net {
namespace {

// Runs `rank` in its own process; its return value is the exit status. Forked before this
// process has threads.
class Process {
 public:
  template <typename F>
  explicit Process(F&& rank) : pid_(fork()) {
    if (pid_ == 0) _exit(rank());
  }
  ~Process() { Wait(); }
  void Signal(int signal) const { kill(pid_, signal); }
  int Wait() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = -1;
    return status_;
  }

 private:
  pid_t pid_;
  int status_ = 0;
};

std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    const std::string name = entry.path().filename().string();
    if (name.find("millrace") != std::string::npos) names.insert(name);
  }
  return names;
}

// Names of unix sockets with the prefix of meetings.
std::set<std::string> MeetingSockets() {
  std::set<std::string> names;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("@millrace-");
    if (at != std::string::npos) names.insert(line.substr(at));
  }
  return names;
}

// Adds until a call fails.
int AddUntilAnError(const SameHostOptions& options) {
  auto joined = JoinSameHost(options);
  if (!joined.ok()) return 2;
  std::vector<float> values(1000);
  for (;;) {
    std::fill(values.begin(), values.end(), 1.0f);
    if (!(*joined)->AllReduceSum(values).ok()) return 0;
    if (values[999] != static_cast<float>(options.size)) return 3;
  }
}

Status AddSome(Collective& collective, int times) {
  std::vector<float> values(1000);
  for (int i = 0; i < times; ++i) {
    std::fill(values.begin(), values.end(), 1.0f);
    MR_RETURN_IF_ERROR(collective.AllReduceSum(values));
    if (values[0] != static_cast<float>(collective.size())) return Internal("a wrong sum");
  }
  return OkStatus();
}

TEST(SameHost, ProcessesAddAndLeaveNothingBehind) {
  SameHostOptions options{.size = 4, .meeting = NewMeeting(), .incarnation = 1};
  const auto before = SharedMemoryFiles();
  const auto rank = [&](int r) {
    return [&options, r] {
      SameHostOptions mine = options;
      mine.rank = r;
      auto joined = JoinSameHost(mine);
      return joined.ok() && AddSome(**joined, 50).ok() ? 0 : 1;
    };
  };
  Process one(rank(1)), two(rank(2)), three(rank(3));
  {
    auto zero = JoinSameHost(options);
    ASSERT_TRUE(zero.ok()) << zero.status().ToString();
    const Status added = AddSome(**zero, 50);
    EXPECT_TRUE(added.ok()) << added.ToString();
    EXPECT_EQ(SharedMemoryFiles(), before);  // no file is created
  }
  for (Process* p : {&one, &two, &three}) EXPECT_EQ(p->Wait(), 0);
  EXPECT_EQ(SharedMemoryFiles(), before);
}

TEST(SameHost, AKilledProcessIsDetectedLongBeforeTheDeadline) {
  for (int victim : {0, 2}) {
    SameHostOptions options{
        .size = 4, .meeting = NewMeeting(), .incarnation = 1, .deadline = Duration::Seconds(250)};
    const auto before = MeetingSockets();
    const auto rank = [&](int r) {
      return [&options, r] {
        SameHostOptions mine = options;
        mine.rank = r;
        return AddUntilAnError(mine);
      };
    };
    Process zero(rank(0)), two(rank(2)), three(rank(3));
    SameHostOptions mine = options;
    mine.rank = 1;
    auto joined = JoinSameHost(mine);
    ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    const Status added = AddSome(**joined, 20);
    ASSERT_TRUE(added.ok()) << added.ToString();
    Process& killed = victim == 0 ? zero : two;
    killed.Signal(SIGKILL);
    const Time begin = SteadyClock().Now();
    Status status;
    while (status.ok()) status = AddSome(**joined, 1);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    EXPECT_LT((SteadyClock().Now() - begin).seconds(), 60);
    EXPECT_TRUE(WIFSIGNALED(killed.Wait()));
    for (Process* p : {&zero, &two, &three}) {
      if (p == &killed) continue;
      EXPECT_EQ(p->Wait(), 0);  // the others got an error too
    }
    EXPECT_TRUE(SharedMemoryFiles().empty());
    for (const std::string& name : MeetingSockets()) EXPECT_TRUE(before.contains(name)) << name;
  }
}

TEST(SameHost, AStoppedProcessIsAnErrorAtTheDeadline) {
  SameHostOptions options{
      .size = 2, .meeting = NewMeeting(), .incarnation = 1, .deadline = Duration::Millis(300)};
  Process one([&] {
    SameHostOptions mine = options;
    mine.rank = 1;
    mine.deadline = Duration::Seconds(250);
    return AddUntilAnError(mine);
  });
  auto joined = JoinSameHost(options);
  ASSERT_TRUE(joined.ok()) << joined.status().ToString();
  one.Signal(SIGSTOP);
  const Time begin = SteadyClock().Now();
  Status status;
  while (status.ok()) status = AddSome(**joined, 1);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("waited 0.3 s for rank 1"), std::string::npos)
      << status.message();
  EXPECT_GT((SteadyClock().Now() - begin).seconds(), 0.29);
  one.Signal(SIGCONT);  // it finds the group ended
  EXPECT_EQ(one.Wait(), 0);
}

TEST(SameHost, RanksOfOtherGroupsAreRefused) {
  SameHostOptions options{.size = 2, .meeting = NewMeeting(), .incarnation = 9};
  Result<std::unique_ptr<Collective>> zero = Unavailable("not yet"), one = Unavailable("not yet");
  std::thread host([&] { zero = JoinSameHost(options); });
  const auto expect_refused = [&](SameHostOptions other, const char* why) {
    auto joined = JoinSameHost(other);
    ASSERT_FALSE(joined.ok()) << why;
    EXPECT_EQ(joined.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(joined.status().message().find(why), std::string::npos) << joined.status().message();
  };
  SameHostOptions other = options;
  other.rank = 1;
  other.incarnation = 8;
  expect_refused(other, "another incarnation");
  other = options;
  other.size = 4;
  other.rank = 3;
  expect_refused(other, "another size");
  SameHostOptions second = options;
  second.rank = 1;
  one = JoinSameHost(second);
  host.join();
  ASSERT_TRUE(zero.ok() && one.ok());
  // The meeting is over: the name is free, and a late rank finds no rank 0.
  other = second;
  other.join_within = Duration::Millis(50);
  EXPECT_EQ(JoinSameHost(other).status().code(), StatusCode::kUnavailable);
}

TEST(SameHost, ARankThatIsNoLongerWantedStopsWaiting) {
  for (int rank : {0, 1}) {
    int asked = 0;
    const SameHostOptions options{
        .rank = rank, .size = 2, .meeting = NewMeeting(), .wanted = [&asked] {
          return ++asked < 3;
        }};
    EXPECT_EQ(JoinSameHost(options).status().code(), StatusCode::kCancelled) << rank;
    EXPECT_EQ(asked, 3);
  }
}

TEST(SameHost, ARankJoinsOnlyOnce) {
  SameHostOptions options{.size = 4, .meeting = NewMeeting(), .incarnation = 9};
  SameHostOptions mine = options;
  mine.rank = 1;
  Status one, two;
  std::thread first([&] { one = JoinSameHost(mine).status(); });
  std::thread second([&] { two = JoinSameHost(mine).status(); });
  options.join_within = Duration::Seconds(1);
  const Status zero = JoinSameHost(options).status();
  first.join();
  second.join();
  // Of the two that claim to be rank 1, one is refused, and no rank waits forever.
  EXPECT_EQ((one.code() == StatusCode::kFailedPrecondition) +
                (two.code() == StatusCode::kFailedPrecondition),
            1)
      << one.ToString() << two.ToString();
  EXPECT_EQ(zero.code(), StatusCode::kUnavailable);
  EXPECT_NE(zero.message().find("2, 3 did not join"), std::string::npos) << zero.message();
}

}  // namespace
}  // namespace millrace::net
