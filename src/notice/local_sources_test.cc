// A file, and a command, as sources of notices.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "notice/exec_source.h"
#include "notice/file_source.h"
#include "notice/testing/fake_metadata.h"

namespace millrace::notice {
namespace {

class Folder {
 public:
  Folder() {
    std::string path = std::filesystem::temp_directory_path() / "notice-XXXXXX";
    MR_CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

TEST(FileDeadline, Forms) {
  EXPECT_EQ(*ParseFileDeadline(""), FileDeadline{});
  EXPECT_EQ(*ParseFileDeadline(" \n"), FileDeadline{});
  EXPECT_EQ(ParseFileDeadline("120\n")->in, Duration::Seconds(120));
  EXPECT_EQ(ParseFileDeadline("120s")->in, Duration::Seconds(120));
  EXPECT_EQ(ParseFileDeadline("2.5 s\r\n")->in, Duration::Seconds(2.5));
  EXPECT_EQ(ParseFileDeadline("0")->in, Duration());
  EXPECT_EQ(ParseFileDeadline("2017-09-18T08:22:00Z\n")->at, WallTime{1505722920});
  for (const char* text : {"soon", "-5", "1e3", "nan", "inf", "120m", "120 120", "604801", "s",
                           "99999999999999999999999999", "2017-09-18"}) {
    const auto parsed = ParseFileDeadline(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find("such as 120s"), std::string::npos);
  }
}

class File : public ::testing::Test {
 protected:
  void Write(const std::string& content) { std::ofstream(path) << content; }
  const std::vector<Notice> Look(double after_s = 0) {
    now.time = now.time + Duration::Seconds(after_s);
    now.wall.s += static_cast<int64_t>(after_s);
    source.Look(now);
    return source.Notices();
  }
  Folder folder;
  const std::string path = folder / "notice";
  FileSource source{path};
  Moment now{Time{} + Duration::Seconds(50), WallTime{1'800'000'000}};
};

TEST_F(File, ItsAppearanceIsANotice) {
  EXPECT_TRUE(Look().empty());
  Write("");
  ASSERT_EQ(Look().size(), 1u);
  const Notice notice = Look()[0];
  EXPECT_EQ(ToText(notice.what.origin), "file: preempt");
  EXPECT_TRUE(notice.what.hard);
  EXPECT_TRUE(notice.cancelable);
  EXPECT_EQ(notice.what.deadline, std::nullopt);
  std::filesystem::remove(path);
  EXPECT_TRUE(Look().empty());
  EXPECT_TRUE(source.TakeComplaints().empty());
}

TEST_F(File, ItsContentIsADeadline) {
  Write("30\n");
  EXPECT_EQ(Look()[0].what.deadline, now.time + Duration::Seconds(29));
  const Time before = now.time;
  EXPECT_EQ(Look(10)[0].what.deadline, before + Duration::Seconds(29)) << "since it was seen";
  Write("60\n");
  EXPECT_EQ(Look()[0].what.deadline, now.time + Duration::Seconds(59)) << "another deadline";
  Write(testing::Rfc3339({now.wall.s + 90}));
  EXPECT_EQ(Look()[0].what.deadline, now.time + Duration::Seconds(89));
}

TEST_F(File, ADamagedDeadlineIsNone) {
  Write("in a moment");
  ASSERT_EQ(Look().size(), 1u);
  EXPECT_EQ(Look()[0].what.deadline, std::nullopt);
  EXPECT_EQ(source.TakeComplaints().size(), 1u);
  Write(std::string(1 << 20, '1'));
  EXPECT_EQ(Look().size(), 1u);
}

TEST_F(File, WhatIsNoFileIsNoNotice) {
  std::filesystem::create_directory(path);
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(source.TakeComplaints().size(), 1u);
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(Look().empty()) << "and it does not wait for a writer";
  EXPECT_TRUE(Look().empty());
  EXPECT_TRUE(source.TakeComplaints().empty()) << "once";
}

TEST_F(File, AnUnreadableFileCounts) {
  Write("30");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  EXPECT_EQ(Look().size(), 1u);
  if (geteuid() != 0) {
    EXPECT_EQ(source.TakeComplaints().size(), 1u);
  }
}

TEST(ExecLine, Forms) {
  const Moment now{Time{} + Duration::Seconds(50), WallTime{1'800'000'000}};
  const auto parse = [&](const char* line) { return *ParseExecLine(line, now); };
  EXPECT_EQ(parse(R"({"withdrawn":true})"), std::nullopt);
  const auto preempt = parse(R"({"kind":"preempt","in_s":30,"note":"more"})");
  EXPECT_EQ(ToText(preempt->what.origin), "exec: preempt");
  EXPECT_TRUE(preempt->what.hard);
  EXPECT_EQ(preempt->what.deadline, now.time + Duration::Seconds(29));
  EXPECT_EQ(parse(R"({"kind":"terminate"})")->what.deadline, std::nullopt);
  EXPECT_EQ(parse(R"({"kind":"maintenance","in_s":null})")->what.deadline, std::nullopt);
  EXPECT_FALSE(parse(R"({"kind":"rebalance"})")->what.hard);
  for (const char* line :
       {"", "{", "7", "[]", R"({"kind":"party"})", R"({"kind":7})", R"({"in_s":30})",
        R"({"kind":"preempt","in_s":-1})", R"({"kind":"preempt","in_s":"30"})",
        R"({"kind":"preempt","in_s":1e99})", R"({"withdrawn":false})", R"({"withdrawn":1})",
        R"({"kind":{"kind":{"kind":{"kind":{}}}}})"}) {
    EXPECT_FALSE(ParseExecLine(line, now).ok()) << line;
  }
}

// Looks until the source says as much, or ten seconds have passed.
bool LookUntil(ExecSource& source, const std::function<bool()>& there, double speed = 1) {
  const SteadyClock clock;
  const Time start = clock.Now();
  for (;;) {
    const Duration passed = clock.Now() - start;
    const Time now{static_cast<int64_t>(static_cast<double>(passed.ns) * speed)};
    source.Look({now, WallNow()});
    if (there()) return true;
    if (passed > Duration::Seconds(10)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(Exec, ACommandThatRunsOn) {
  const Folder folder;
  ExecSource source(fmt::format(
      R"(echo '{{"kind":"preempt","in_s":60}}'; echo noise >&2; )"
      R"(while [ ! -e {} ]; do sleep 0.02; done; echo; echo '{{"withdrawn":true}}'; sleep 100)",
      folder / "over"));
  ASSERT_TRUE(LookUntil(source, [&] { return source.Notices().size() == 1; }));
  std::ofstream(folder / "over") << "";
  ASSERT_TRUE(LookUntil(source, [&] { return source.Notices().empty(); }));
  EXPECT_TRUE(source.TakeComplaints().empty());
}

TEST(Exec, ACommandThatIsRepeated) {
  const Folder folder;
  ExecSource source(fmt::format(R"(echo x >> {0}; [ -e {0} ] && echo '{{"kind":"terminate"}}')",
                                folder / "runs"));
  const auto runs = [&] {
    std::ifstream file(folder / "runs");
    return std::string(std::istreambuf_iterator<char>(file), {}).size() / 2;
  };
  ASSERT_TRUE(LookUntil(source, [&] { return source.Notices().size() == 1 && runs() >= 1; }));
  // What it said holds after its end. It is started again after a pause, here a shorter one.
  ASSERT_TRUE(LookUntil(
      source, [&] { return runs() >= 3; }, 100));
  EXPECT_EQ(source.Notices().size(), 1u);
  EXPECT_TRUE(source.TakeComplaints().empty());
}

TEST(Exec, FailuresAreComplainedOfOnce) {
  ExecSource source("echo x; exit 3");
  std::vector<std::string> complaints;
  const auto collect = [&](size_t count) {
    for (std::string& text : source.TakeComplaints()) complaints.push_back(std::move(text));
    return complaints.size() >= count;
  };
  ASSERT_TRUE(LookUntil(
      source, [&] { return collect(2); }, 100));
  EXPECT_NE(complaints[0].find(R"({"kind":"preempt","in_s":30})"), std::string::npos);
  EXPECT_NE(complaints[1].find("exit code 3"), std::string::npos);
  int looks = 0;  // over 50 seconds of its time
  ASSERT_TRUE(LookUntil(
      source, [&] { return ++looks == 100; }, 100));
  EXPECT_FALSE(collect(3));
  EXPECT_TRUE(source.Notices().empty());
}

TEST(Exec, AFloodIsBounded) {
  ExecSource source(R"(while :; do echo '{"kind":"preempt"}'; done)");
  const SteadyClock clock;
  ASSERT_TRUE(LookUntil(source, [&] { return !source.TakeComplaints().empty(); }));
  const Time before = clock.Now();
  source.Look({clock.Now(), WallNow()});
  EXPECT_LT(clock.Now() - before, Duration::Seconds(2));
  EXPECT_EQ(source.Notices().size(), 1u);
}

}  // namespace
}  // namespace millrace::notice
