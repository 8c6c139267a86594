#include "ops/process/reloader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

namespace millrace::ops {
namespace {

namespace fs = std::filesystem;

class ReloaderTest : public testing::Test {
 protected:
  ReloaderTest() : root_(testing::TempDir() + "/reloader_test_" + std::to_string(getpid())) {
    fs::create_directories(root_);
    Write("a", "1");
    Write("b", "1");
  }
  ~ReloaderTest() override { fs::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/made") << text;
    fs::rename(root_ + "/made", root_ + "/" + name);  // one change
  }
  // Looks every two milliseconds, or never.
  std::unique_ptr<Reloader> Watch(std::vector<std::string> names, bool looks = true) {
    for (std::string& name : names) name = root_ + "/" + name;
    return std::make_unique<Reloader>(std::vector<ReloadedFiles>{{"test", std::move(names),
                                                                  [this] {
                                                                    ++count_;
                                                                    return fails_ ? NotFound("gone")
                                                                                  : OkStatus();
                                                                  }}},
                                      looks ? Duration::Millis(2) : Duration::Seconds(3600));
  }
  bool Reaches(int count) const {
    for (int i = 0; i < 5000 && count_ < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return count_ == count;
  }

  const std::string root_;
  std::atomic<int> count_ = 0;
  std::atomic<bool> fails_ = false;
};

TEST_F(ReloaderTest, ReadsWhatChanged) {
  const auto reloader = Watch({"a", "b"});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(count_, 0);
  Write("b", "22");
  EXPECT_TRUE(Reaches(1));
  fs::rename(root_ + "/a", root_ + "/c");
  EXPECT_TRUE(Reaches(2)) << "a file that goes";
  fs::rename(root_ + "/c", root_ + "/a");
  EXPECT_TRUE(Reaches(3)) << "and comes back";
}

TEST_F(ReloaderTest, FollowsLinks) {
  fs::create_symlink("a", root_ + "/link");
  const auto reloader = Watch({"link"});
  fs::create_symlink("b", root_ + "/next");
  fs::rename(root_ + "/next", root_ + "/link");
  EXPECT_TRUE(Reaches(1));
}

TEST_F(ReloaderTest, AFailureIsNotTriedAgainUntilTheNextChange) {
  fails_ = true;
  const auto reloader = Watch({"a"});
  Write("a", "22");
  EXPECT_TRUE(Reaches(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(count_, 1);
  Write("a", "333");
  EXPECT_TRUE(Reaches(2));
}

TEST_F(ReloaderTest, ReadsWhenItIsTold) {
  const auto reloader = Watch({"a"}, /*looks=*/false);
  reloader->ReloadNow();
  EXPECT_TRUE(Reaches(1));
}

}  // namespace
}  // namespace millrace::ops
