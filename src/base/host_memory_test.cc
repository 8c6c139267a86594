#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace millrace {
namespace {

namespace fs = std::filesystem;

TEST(HostMemory, TakesTheLeastOfMachineAndControlGroups) {
  std::string pattern = (fs::temp_directory_path() / "millrace-memory-XXXXXX").string();
  const std::string root = std::string(mkdtemp(pattern.data())) + "/";
  const auto write = [&](const std::string& name, const char* content) {
    std::ofstream(root + name) << content;
  };
  EXPECT_EQ(ReadMemoryAvailable(root).bytes, std::numeric_limits<int64_t>::max());
  fs::create_directories(root + "proc/self");
  fs::create_directories(root + "sys/fs/cgroup/a/b");
  write("proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(ReadMemoryAvailable(root).bytes, 1024000);
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "5\n");
  write("sys/fs/cgroup/a/memory.max", "700000\n");
  write("sys/fs/cgroup/a/memory.current", "300000\n");
  EXPECT_EQ(ReadMemoryAvailable(root).bytes, 400000);
  write("sys/fs/cgroup/a/memory.stat", "anon 200000\nfile 100000\n");
  EXPECT_EQ(ReadMemoryAvailable(root).bytes, 500000);
  EXPECT_EQ(ReadMemoryAvailable(root).source, "control group limit");
  write("proc/self/cgroup", "4:memory:/x\n");
  fs::create_directories(root + "sys/fs/cgroup/memory/x");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9000\n");
  write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(ReadMemoryAvailable(root).bytes, 8000);
  fs::remove_all(root);
}

}  // namespace
}  // namespace millrace
