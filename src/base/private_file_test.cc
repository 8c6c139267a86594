#include "base/private_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/testing/temp_folder.h"

namespace millrace {
namespace {

unsigned ModeOf(const std::string& path) {
  struct stat file = {};
  EXPECT_EQ(::stat(path.c_str(), &file), 0) << path;
  return file.st_mode & 07777;
}

TEST(PrivateFile, ANewOneIsPrivateWhateverTheUmask) {
  const TempFolder folder;
  const mode_t before = ::umask(0);
  MakePrivateFile(folder.path() + "/new");
  ::umask(before);
  EXPECT_EQ(ModeOf(folder.path() + "/new"), 0600u);
}

TEST(PrivateFile, OneThatExistsIsTightenedAndKeepsItsBytes) {
  const TempFolder folder;
  const std::string path = folder.path() + "/old";
  std::ofstream(path) << "bytes";
  std::filesystem::permissions(path, std::filesystem::perms(0664));
  MakePrivateFile(path, MissingFile::kLeave);
  EXPECT_EQ(ModeOf(path), 0600u);
  EXPECT_EQ(std::filesystem::file_size(path), 5u);
  MakePrivateFile(folder.path() + "/missing", MissingFile::kLeave);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/missing"));
}

TEST(PrivateFile, APipeIsLeftAlone) {
  const TempFolder folder;
  const std::string path = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0644), 0);
  MakePrivateFile(path);
  EXPECT_NE(ModeOf(path), 0600u);
}

TEST(PrivateFolder, ANewOneIsPrivateAndAnotherKeepsItsMode) {
  const TempFolder folder;
  const std::string made = folder.path() + "/a/b";
  ASSERT_TRUE(MakePrivateFolder(made).ok());
  EXPECT_EQ(ModeOf(made), 0700u);
  std::filesystem::permissions(made, std::filesystem::perms(01777));
  ASSERT_TRUE(MakePrivateFolder(made).ok());
  EXPECT_EQ(ModeOf(made), 01777u);
  EXPECT_FALSE(MakePrivateFolder("/proc/no/folder").ok());
}

}  // namespace
}  // namespace millrace
