#include "ops/process/supervisor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

namespace millrace::ops {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

ChildSpec Shell(std::string name, const std::string& script, int stop_order = 0) {
  return {.name = std::move(name),
          .argv = {"/bin/sh", "-c", script},
          .environment = {},
          .stop_order = stop_order};
}

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    options_.pause_first = Duration::Millis(1);
    options_.pause_most = Duration::Millis(4);
    options_.on_line = [this](std::string_view name, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(fmt::format("{}: {}", name, line));
    };
  }
  std::unique_ptr<Supervisor> Start(std::vector<ChildSpec> children) {
    auto started = Supervisor::Start(options_, std::move(children));
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    return started.ok() ? std::move(*started) : nullptr;
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  long Count(const std::string& line) {
    const auto all = lines();
    return std::count(all.begin(), all.end(), line);
  }
  template <typename Condition>
  static bool Until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  static bool HasNoChildren() { return waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

  SupervisorOptions options_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST(RestartPause, DoublesUpToTheMost) {
  SupervisorOptions options;
  std::vector<double> pauses;
  for (int deaths : {1, 2, 3, 6, 7, 1000}) {
    pauses.push_back(RestartPause(options, deaths).seconds());
  }
  EXPECT_EQ(pauses, (std::vector<double>{0.1, 0.2, 0.4, 3.2, 5, 5}));
}

TEST_F(SupervisorTest, LinesOfBothStreamsCarryTheName) {
  auto supervisor = Start({Shell("a", "echo one; echo two >&2; printf half"),
                           Shell("b", "head -c 20000 /dev/zero | tr '\\0' x; echo; echo end")});
  supervisor->Wait();
  EXPECT_EQ(Count("a: one"), 1);
  EXPECT_EQ(Count("a: two"), 1);
  EXPECT_EQ(Count("a: half"), 1) << "a last line without an end";
  EXPECT_EQ(Count("b: " + std::string(kChildLineBytesMax, 'x')), 1) << "long ones are cut";
  EXPECT_EQ(Count("b: end"), 1);
  EXPECT_TRUE(HasNoChildren());
}

TEST_F(SupervisorTest, DeadChildrenAreRestarted) {
  auto supervisor = Start({Shell("a", "echo up; kill -9 $$"), Shell("b", "exec sleep 1000")});
  EXPECT_TRUE(Until([&] { return Count("a: up") >= 3; }));
  EXPECT_GE(Count("a: exited with 137; restarting in 0.0 s"), 2);
  const auto status = supervisor->Describe();
  EXPECT_GE(status[0].starts, 3);
  EXPECT_EQ(status[1].starts, 1) << "the other one is left alone";
  supervisor.reset();
  EXPECT_TRUE(HasNoChildren()) << "no zombie, no stray";
}

TEST_F(SupervisorTest, AChildThatIsKilledOnRequestIsRestarted) {
  auto supervisor = Start({Shell("a", "echo up; exec sleep 1000"), Shell("b", "exit 0")});
  ASSERT_TRUE(Until([&] { return Count("a: up") == 1; }));
  EXPECT_TRUE(supervisor->Signal("a", SIGKILL));
  EXPECT_TRUE(Until([&] { return Count("a: up") == 2; }));
  EXPECT_TRUE(Until([&] { return supervisor->Describe()[1].stays_down; }));
  EXPECT_FALSE(supervisor->Signal("b", SIGKILL)) << "it has ended";
  EXPECT_FALSE(supervisor->Signal("c", SIGKILL)) << "there is none of that name";
}

TEST_F(SupervisorTest, ChildrenThatFinishOrHaveWrongUsageStayDown) {
  auto supervisor = Start({Shell("left", "exit 0"), Shell("usage", "exit 2")});
  supervisor->Wait();
  for (const ChildStatus& status : supervisor->Describe()) {
    EXPECT_EQ(status.starts, 1) << status.name;
    EXPECT_TRUE(status.stays_down) << status.name;
  }
  EXPECT_EQ(Count("usage: exited with 2; it is not restarted"), 1);
}

TEST_F(SupervisorTest, StopsInOrder) {
  const std::string script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done";
  auto supervisor =
      Start({Shell("worker", script, 1), Shell("controller", script, 0), Shell("w2", script, 1)});
  ASSERT_TRUE(
      Until([&] { return Count("worker: up") + Count("controller: up") + Count("w2: up") == 3; }));
  supervisor->BeginStop();
  supervisor->Wait();
  const auto all = lines();
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[3], "controller: bye");
  EXPECT_EQ(Count("worker: bye") + Count("w2: bye"), 2);
  EXPECT_TRUE(HasNoChildren());
}

TEST_F(SupervisorTest, AChildThatIgnoresSigtermIsKilled) {
  options_.stop_limit = Duration::Millis(30);
  auto supervisor = Start({Shell("deaf", "trap '' TERM; echo up; while :; do sleep 0.01; done")});
  ASSERT_TRUE(Until([&] { return Count("deaf: up") == 1; }));
  supervisor->BeginStop();
  supervisor->Wait();
  EXPECT_EQ(supervisor->Describe()[0].last_exit, 128 + SIGKILL);
}

TEST_F(SupervisorTest, KillDoesNotWait) {
  options_.stop_limit = Duration::Seconds(1000);
  auto supervisor = Start({Shell("deaf", "trap '' TERM; echo up; while :; do sleep 0.01; done", 0),
                           Shell("last", "echo up; exec sleep 1000", 1)});
  ASSERT_TRUE(Until([&] { return Count("deaf: up") + Count("last: up") == 2; }));
  supervisor->BeginStop();
  supervisor->Kill();
  supervisor->Wait();
  EXPECT_EQ(supervisor->Describe()[1].last_exit, 128 + SIGKILL);
}

TEST_F(SupervisorTest, AProgramThatCannotBeExecutedIsReportedAtOnce) {
  auto started = Supervisor::Start(
      options_, {Shell("a", "exec sleep 1000"), {.name = "b", .argv = {"/no/such/program"}}});
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.status().message(), "/no/such/program: No such file or directory");
  EXPECT_TRUE(HasNoChildren()) << "the first one was stopped";
}

TEST_F(SupervisorTest, ChildrenHaveTheirEnvironmentAndNoDescriptorOfOurs) {
  const int ours = dup(STDERR_FILENO);  // inheritable
  ChildSpec spec =
      Shell("a", "echo $MILLRACE_X$MILLRACE_Y; ls /proc/self/fd | tr '\\n' ' '; kill -l $?");
  spec.environment = {"MILLRACE_X=told"};
  setenv("MILLRACE_Y", " an option of this process", 1);
  auto supervisor = Start({std::move(spec)});
  supervisor->Wait();
  close(ours);
  EXPECT_EQ(lines()[0], "a: told");
  EXPECT_EQ(lines()[1].substr(0, 11), "a: 0 1 2 3 ") << "3 is ls's own";
  EXPECT_EQ(lines()[1].find_first_of("456789"), std::string::npos) << lines()[1];
}

// When the supervisor's process is killed, its children die too.
TEST_F(SupervisorTest, ChildrenDieWithTheProcess) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t middle = fork();
  if (middle == 0) {
    SupervisorOptions options;
    options.on_line = [&](std::string_view, std::string_view line) {
      [[maybe_unused]] const auto written = write(ends[1], line.data(), line.size());
    };
    auto supervisor = Supervisor::Start(
        options, {Shell("a", "trap '' TERM HUP; echo $$.; while :; do sleep 0.01; done")});
    pause();
    _exit(0);
  }
  std::string said;
  while (!said.ends_with('.')) {
    char c = 0;
    ASSERT_EQ(read(ends[0], &c, 1), 1);
    said += c;
  }
  const pid_t grandchild = std::stoi(said);
  ASSERT_EQ(kill(grandchild, 0), 0);
  kill(middle, SIGKILL);
  waitpid(middle, nullptr, 0);
  // Its new parent reaps it or leaves it a zombie; it is dead in both cases.
  EXPECT_TRUE(Until([grandchild] {
    std::ifstream stat(fmt::format("/proc/{}/stat", grandchild));
    std::string text;
    std::getline(stat, text);
    return !stat || text.find(") Z ") != std::string::npos;
  }));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace millrace::ops
