#include "base/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace millrace {
namespace {

namespace fs = std::filesystem;

class CpuQuota : public ::testing::Test {
 protected:
  CpuQuota() {
    std::string pattern = (fs::temp_directory_path() / "millrace-quota-XXXXXX").string();
    root_ = std::string(mkdtemp(pattern.data())) + "/";
    fs::create_directories(root_ + "proc/self");
  }
  ~CpuQuota() override { fs::remove_all(root_); }
  void Write(const std::string& name, const char* content) const {
    fs::create_directories(fs::path(root_ + name).parent_path());
    std::ofstream(root_ + name) << content;
  }

  std::string root_;
};

TEST_F(CpuQuota, IsTheLeastOfAllGroups) {
  EXPECT_EQ(ReadCpuQuota(root_), std::nullopt);
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), std::nullopt);
  Write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 2.5);
  Write("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 0.5);
}

// A container of version 2 sees its own group as the root.
TEST_F(CpuQuota, OfAContainer) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 4);
}

TEST_F(CpuQuota, OfTheFirstVersion) {
  Write("proc/self/cgroup", "9:cpuset:/y\n4:cpuacct,cpu:/x\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), std::nullopt);
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 1.5);
}

TEST_F(CpuQuota, NonsenseIsNone) {
  Write("proc/self/cgroup", "0::/a\n:\nx\n");
  Write("sys/fs/cgroup/a/cpu.max", "much\n");
  EXPECT_EQ(ReadCpuQuota(root_), std::nullopt);
  Write("sys/fs/cgroup/a/cpu.max", "100 0\n");
  EXPECT_EQ(ReadCpuQuota(root_), std::nullopt);
}

}  // namespace
}  // namespace millrace
