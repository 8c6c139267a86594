// Where a server puts its admin socket, what it refuses, and how commands find it.
#include "apps/common/admin_socket.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "net/unix_socket.h"

namespace millrace::apps {
namespace {

constexpr uint16_t kPort = 8000;

class AdminSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "places-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    places_.user = geteuid();
    places_.user_root = root_ / "users";
    places_.temporary_root = root_ / "tmp";
    std::filesystem::create_directory(places_.user_root);
    std::filesystem::create_directory(places_.temporary_root);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string TemporaryFolder() const {
    return fmt::format("{}/millrace-{}", places_.temporary_root, places_.user);
  }
  std::string MakeSessionFolder() const {
    std::string path = fmt::format("{}/{}", places_.user_root, places_.user);
    std::filesystem::create_directory(path);
    return path;
  }
  Status Refusal() const { return MakeAdminSocketPath(places_, kPort).status(); }

  std::filesystem::path root_;
  RuntimePlaces places_;
};

TEST_F(AdminSocketTest, ThePathFollowsFromThePortAndTheUser) {
  const std::string last = TemporaryFolder() + "/admin-8000.sock";
  EXPECT_EQ(AdminSocketPaths(places_, kPort), std::vector{last});
  EXPECT_EQ(*MakeAdminSocketPath(places_, kPort), last);
  EXPECT_EQ(*MakeAdminSocketPath(places_, 1), TemporaryFolder() + "/admin-1.sock");

  const std::string session = MakeSessionFolder() + "/millrace/admin-8000.sock";
  EXPECT_EQ(AdminSocketPaths(places_, kPort), (std::vector{session, last}));
  EXPECT_EQ(*MakeAdminSocketPath(places_, kPort), session);

  places_.xdg_runtime_dir = root_;
  const std::string xdg = root_ / "millrace/admin-8000.sock";
  EXPECT_EQ(AdminSocketPaths(places_, kPort), (std::vector{xdg, session, last}));
  EXPECT_EQ(*MakeAdminSocketPath(places_, kPort), xdg);
  places_.xdg_runtime_dir = MakeSessionFolder();
  EXPECT_EQ(AdminSocketPaths(places_, kPort), (std::vector{session, last})) << "named once";
}

TEST_F(AdminSocketTest, AnUnusableRuntimeFolderIsSkipped) {
  const std::vector<std::string> rest = AdminSocketPaths(places_, kPort);
  for (const char* xdg : {"relative/path", "/no/such/folder/anywhere", "/dev/null"}) {
    places_.xdg_runtime_dir = xdg;
    EXPECT_EQ(AdminSocketPaths(places_, kPort), rest) << xdg;
  }
  // Another user's, as su leaves it.
  places_.xdg_runtime_dir = root_;
  places_.user = geteuid() + 1;
  if (geteuid() != 0) {
    EXPECT_EQ(AdminSocketPaths(places_, kPort).size(), 1u);
  } else {
    ASSERT_EQ(chown(root_.c_str(), 4321, 4321), 0);
    EXPECT_EQ(AdminSocketPaths(places_, kPort).size(), 1u);
  }
}

TEST_F(AdminSocketTest, TheFolderIsMadeForItsOwnerAlone) {
  for (const mode_t mask : {0u, 077u}) {
    const mode_t before = umask(mask);
    EXPECT_TRUE(MakeAdminSocketPath(places_, kPort).ok());
    umask(before);
    struct stat made = {};
    ASSERT_EQ(lstat(TemporaryFolder().c_str(), &made), 0);
    EXPECT_EQ(made.st_mode & 07777, 0700u);
    std::filesystem::remove(TemporaryFolder());
  }
}

TEST_F(AdminSocketTest, AFolderThatOthersCanEnterIsRefused) {
  for (const mode_t mode : {0755, 0710, 0701, 0770}) {
    std::filesystem::create_directory(TemporaryFolder());
    ASSERT_EQ(chmod(TemporaryFolder().c_str(), mode), 0);
    EXPECT_EQ(Refusal().message(),
              fmt::format("{0} has mode {1:04o}, so that other users can enter it; run: chmod 700 "
                          "{0}",
                          TemporaryFolder(), mode));
    std::filesystem::remove(TemporaryFolder());
  }
}

TEST_F(AdminSocketTest, SymbolicLinksFilesAndFoldersOfOthersAreRefused) {
  std::filesystem::create_directory(root_ / "elsewhere");
  std::filesystem::create_directory_symlink(root_ / "elsewhere", TemporaryFolder());
  EXPECT_NE(Refusal().message().find("is a symbolic link"), std::string::npos);
  std::filesystem::remove(TemporaryFolder());

  std::ofstream(TemporaryFolder()) << "x";
  EXPECT_NE(Refusal().message().find("is not a folder"), std::string::npos);
  std::filesystem::remove(TemporaryFolder());

  // A folder that belongs to another user.
  places_.user = geteuid() + 1;
  std::filesystem::create_directory(TemporaryFolder());
  std::filesystem::permissions(TemporaryFolder(), std::filesystem::perms::owner_all);
  EXPECT_EQ(Refusal().message(),
            fmt::format("{} belongs to user {}, but user {} runs this; set XDG_RUNTIME_DIR to a "
                        "folder of your own",
                        TemporaryFolder(), geteuid(), places_.user));
  EXPECT_EQ(FindAdminSocket(places_, kPort).status().message(), Refusal().message());
}

TEST_F(AdminSocketTest, AFolderThatCannotBeMadeIsAnErrorWithItsCure) {
  std::filesystem::remove(places_.temporary_root);
  EXPECT_EQ(Refusal().message(),
            fmt::format("cannot make the folder {} for the admin socket: No such file or "
                        "directory; set XDG_RUNTIME_DIR to a folder of your own",
                        TemporaryFolder()));
}

TEST_F(AdminSocketTest, ARuntimeFolderTooLongForASocketIsSkipped) {
  const std::vector<std::string> rest = AdminSocketPaths(places_, kPort);
  const std::string folder = root_ / std::string(net::kUnixPathBytesMax, 'l');
  std::filesystem::create_directory(folder);
  places_.xdg_runtime_dir = folder;
  EXPECT_EQ(AdminSocketPaths(places_, kPort), rest);
}

// As su and sudo -E leave the variable: /run/user/0 is root's alone.
TEST_F(AdminSocketTest, RootsRuntimeFolderIsSkippedUnlessItHoldsOneOfTheUser) {
  if (geteuid() != 0) return;  // only root can make a folder that belongs to root
  constexpr uid_t kUser = 4321;
  places_.xdg_runtime_dir = root_ / "root";
  std::filesystem::create_directory(places_.xdg_runtime_dir);
  std::filesystem::permissions(root_, std::filesystem::perms::all);
  std::filesystem::permissions(places_.xdg_runtime_dir, std::filesystem::perms::owner_all);
  places_.user = kUser;
  ASSERT_EQ(seteuid(kUser), 0);
  const size_t without = AdminSocketPaths(places_, kPort).size();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(without, 1u);
  // systemd's RuntimeDirectory=millrace below /run.
  std::filesystem::permissions(places_.xdg_runtime_dir, static_cast<std::filesystem::perms>(0755));
  const std::string own = places_.xdg_runtime_dir + "/millrace";
  std::filesystem::create_directory(own);
  ASSERT_EQ(chown(own.c_str(), kUser, kUser), 0);
  ASSERT_EQ(seteuid(kUser), 0);
  const std::vector<std::string> with = AdminSocketPaths(places_, kPort);
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_EQ(with.size(), 2u);
  EXPECT_EQ(with.front(), own + "/admin-8000.sock");
}

TEST_F(AdminSocketTest, TheFirstSocketThatAnswersIsFound) {
  const auto last = net::ListenOnUnixSocket(*MakeAdminSocketPath(places_, kPort));
  ASSERT_TRUE(last.ok());
  MakeSessionFolder();
  EXPECT_EQ(*FindAdminSocket(places_, kPort), last->file.path())
      << "the server was started before the user had a session";
  const auto first = net::ListenOnUnixSocket(*MakeAdminSocketPath(places_, kPort));
  ASSERT_TRUE(first.ok());
  EXPECT_NE(first->file.path(), last->file.path());
  EXPECT_EQ(*FindAdminSocket(places_, kPort), first->file.path());
}

TEST_F(AdminSocketTest, NoSocketIsExplained) {
  MakeSessionFolder();
  const Status none = FindAdminSocket(places_, kPort).status();
  EXPECT_EQ(none.code(), StatusCode::kUnavailable);
  for (const std::string& path : AdminSocketPaths(places_, kPort)) {
    EXPECT_NE(none.message().find(path), std::string::npos) << none.message();
  }
  EXPECT_NE(none.message().find("Is a server running on port 8000?"), std::string::npos);
  const std::string path = *MakeAdminSocketPath(places_, kPort);
  { ASSERT_TRUE(net::ListenOnUnixSocket(path).ok()); }
  EXPECT_EQ(FindAdminSocket(places_, kPort).status().message(),
            "nothing is listening on " + path + ": the process that created it has ended");
}

}  // namespace
}  // namespace millrace::apps
