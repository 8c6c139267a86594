#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/statistics.h"
#include "base/status.h"
#include "base/strong_id.h"

namespace millrace {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  MR_ASSIGN_OR_RETURN(int half, Half(x));
  return Half(half);
}

TEST(Status, TravelsThroughResults) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_EQ(Quarter(6).status().WithContext("x").ToString(), "invalid argument: x: odd");
  EXPECT_TRUE(OkStatus().WithContext("x").ok());
}

TEST(CheckDeathTest, NamesTheConditionAndTheReason) {
  EXPECT_DEATH(MR_CHECK(1 + 1 == 3) << "sum", "1 \\+ 1 == 3 sum");
}

TEST(Rng, IsAFunctionOfSeedAndCounter) {
  Rng a(7), b(7), c(8);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    uint64_t x = a.Next();
    EXPECT_EQ(x, b.Next());
    EXPECT_NE(x, c.Next());
    seen.insert(x);
  }
  EXPECT_EQ(seen.size(), 1000u);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += a.Uniform();
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(Clock, ManualClockMovesOnlyWhenAdvanced) {
  ManualClock clock;
  Time start = clock.Now();
  clock.Advance(Duration::Millis(3));
  EXPECT_EQ((clock.Now() - start).ns, 3'000'000);
  SteadyClock steady;
  Time t = steady.Now();
  EXPECT_GE(steady.Now(), t);
}

TEST(Json, DeepNestingIsAnErrorNotACrash) {
  EXPECT_FALSE(ParseJson(std::string(100'000, '[')).ok());
  EXPECT_TRUE(ParseJson(R"({"a":"[[[[{{{{\""})", 1).ok()) << "brackets in strings do not count";
  EXPECT_NE(ParseJson("{\"a\":}").status().message().find("byte"), std::string::npos);
  EXPECT_FALSE(ParseJson("\"\xff\"").ok()) << "invalid UTF-8";
  EXPECT_FALSE(ParseJson("[1e400]").ok());
  EXPECT_EQ(DumpJson(Json("a\xff")), "\"a\xef\xbf\xbd\"");
}

class FileTest : public ::testing::Test {
 protected:
  FileTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("millrace_base_test_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const char* name) const { return folder_ / name; }
  std::filesystem::path folder_;
};

TEST_F(FileTest, ReadsWritesAndMaps) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "hello").ok());
  EXPECT_EQ(*ReadFile(Path("a"), 5), "hello");
  EXPECT_EQ(ReadFile(Path("a"), 4).status().code(), StatusCode::kTooLarge);
  auto map = MappedFile::Open(Path("a"));
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->bytes().size(), 5u);
  map->Release(0, 5);
  EXPECT_EQ(map->bytes()[4], 'o');
}

TEST_F(FileTest, SecretsAreTheOwnersAndReplacedOnlyWhenAsked) {
  const auto mode = [this] {
    struct stat st = {};
    EXPECT_EQ(stat(Path("key").c_str(), &st), 0);
    return st.st_mode & 07777;
  };
  const mode_t before = umask(0);
  ASSERT_TRUE(WriteFileWithMode(Path("key"), "one", 0600, ExistingFile::kKeep).ok());
  EXPECT_EQ(mode(), 0600u);
  umask(077);
  const Status kept = WriteFileWithMode(Path("key"), "two", 0600, ExistingFile::kKeep);
  EXPECT_EQ(kept.message(), Path("key") + ": File exists");
  EXPECT_EQ(*ReadFile(Path("key"), 10), "one");
  ASSERT_TRUE(WriteFileWithMode(Path("key"), "two", 0644, ExistingFile::kReplace).ok());
  EXPECT_EQ(mode(), 0644u) << "whatever the umask";
  EXPECT_EQ(*ReadFile(Path("key"), 10), "two");
  umask(before);
  EXPECT_FALSE(WriteFileWithMode(Path("no/key"), "x", 0600, ExistingFile::kReplace).ok());
  EXPECT_FALSE(WriteFileWithMode(folder_, "x", 0600, ExistingFile::kReplace).ok());
  const auto files = std::filesystem::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "no temporary file is left";
}

TEST_F(FileTest, RefusesWhatIsNotARegularFile) {
  EXPECT_EQ(ReadFile(Path("none"), 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(folder_, 10).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(Path("fifo")).status().code(), StatusCode::kInvalidArgument);
}

TEST(Statistics, AgreesWithNumpy) {
  const std::vector<double> x = {3, 1, 4, 1, 5, 9, 2, 6};
  EXPECT_DOUBLE_EQ(Mean(x), 3.875);
  EXPECT_DOUBLE_EQ(Median(x), 3.5);
  EXPECT_NEAR(StdDev(x), 2.57087, 1e-5);       // numpy.std(x)
  EXPECT_NEAR(Percentile(x, 99), 8.79, 1e-9);  // numpy.percentile(x, 99)
  EXPECT_NEAR(Percentile(x, 25), 1.75, 1e-9);
  EXPECT_DOUBLE_EQ(Percentile(x, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile(x, 100), 9);
  EXPECT_DOUBLE_EQ(Percentile({}, 50), 0);
  EXPECT_DOUBLE_EQ(Percentile({7}, 99), 7);
}

TEST(Statistics, ConfidenceIsStudents) {
  EXPECT_EQ(ConfidenceHalfWidth(std::vector<double>{3}), 0);
  const std::vector<double> four = {1, 2, 3, 4};  // s = 1.29099, t(3) = 3.182
  EXPECT_NEAR(ConfidenceHalfWidth(four), 3.182 * 1.2909944 / 2, 1e-6);
}

TEST(Statistics, PercentileMatchesSortingOnRandomSamples) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> x;
    for (int64_t i = rng.Between(1, 40); i > 0; --i) x.push_back(rng.Uniform());
    const double percent = rng.Uniform() * 100;
    std::vector<double> sorted = x;
    std::sort(sorted.begin(), sorted.end());
    const double rank = percent / 100 * static_cast<double>(x.size() - 1);
    const auto low = static_cast<size_t>(rank);
    const double high = sorted[std::min(low + 1, x.size() - 1)];
    EXPECT_NEAR(Percentile(x, percent), sorted[low] + (high - sorted[low]) * (rank - low), 1e-12);
  }
}

TEST(UniqueFd, IsClosedOnceByItsLastOwner) {
  const auto is_open = [](int fd) { return fcntl(fd, F_GETFD) >= 0; };
  UniqueFd first(dup(STDERR_FILENO)), second(dup(STDERR_FILENO));
  const int of_first = first.get(), of_second = second.get();
  second = std::move(first);
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): a move leaves it empty
  EXPECT_FALSE(is_open(of_second)) << "replaced, so closed";
  EXPECT_EQ(second.get(), of_first);
  UniqueFd(std::move(second)).Release();
  EXPECT_TRUE(is_open(of_first)) << "released, so left open";
  second = UniqueFd(of_first);
  second = UniqueFd();
  EXPECT_FALSE(is_open(of_first));
}

TEST(Log, AJsonLineIsAnObjectWhateverTheBytes) {
  const auto time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1769860800123));
  EXPECT_EQ(JsonLogLine(time, "info", "ready"),
            R"({"time":"2026-01-31T12:00:00.123Z","level":"info","message":"ready"})");
  std::string bytes;
  for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  const std::string line = JsonLogLine(time, "warning", bytes, "w\n1");
  EXPECT_TRUE(std::ranges::none_of(line, [](unsigned char c) { return c < 0x20; })) << line;
  const auto parsed = ParseJson(line);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ((*parsed)["process"], "w\n1");
  const auto message = (*parsed)["message"].get<std::string>();
  EXPECT_EQ(message.substr(0, 0x80), bytes.substr(0, 0x80)) << "ASCII is kept";
  EXPECT_EQ(message.substr(0x80, 3), "\xef\xbf\xbd") << "what is not UTF-8 is replaced";
}

TEST(Log, LinesOfChildrenKeepTheirFieldsAndNameTheirProcess) {
  EXPECT_EQ(JsonLogLineOf("w1", R"({"level":"info","message":"ready","time":"t"})"),
            R"({"level":"info","message":"ready","process":"w1","time":"t"})");
  for (const char* other : {"terminate called", "[1]", "{\"a\": 1}", "{"}) {
    const auto line = ParseJson(JsonLogLineOf("w1", other));
    ASSERT_TRUE(line.ok());
    EXPECT_EQ((*line)["message"], other);
    EXPECT_EQ((*line)["process"], "w1");
  }
}

TEST(Log, OutsideTextCannotForgeALine) {
  EXPECT_EQ(Printable("a\nb\x1b[31m"), "a\\nb\\x1b[31m");
  EXPECT_EQ(Printable(std::string(1000, 'x'), 3), "xxx...");
  EXPECT_FALSE(InitLog("loud").ok());
  EXPECT_TRUE(InitLog("info").ok());
}

}  // namespace
}  // namespace millrace
