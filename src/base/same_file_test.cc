#include "base/same_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace millrace {
namespace {

TEST(SameFile, NoticesThatAFileIsGoneOrAnother) {
  const std::string path = testing::TempDir() + "same_file_test";
  EXPECT_FALSE(SameFile(path + ".none").Check().ok());
  std::ofstream(path) << "one";
  const SameFile file(path);
  EXPECT_TRUE(file.Check().ok());
  std::ofstream(path) << "the same, longer";
  EXPECT_TRUE(file.Check().ok());
  std::ofstream(path + ".new") << "another";
  std::filesystem::rename(path + ".new", path);
  EXPECT_FALSE(file.Check().ok());
  std::filesystem::remove(path);
  EXPECT_EQ(file.Check().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace millrace
