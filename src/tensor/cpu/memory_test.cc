#include "tensor/cpu/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace millrace::tensor {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kBytes = size_t{8} << 20;

size_t ResidentPages(const HostMemory& memory, size_t offset, size_t bytes) {
  const auto begin = (reinterpret_cast<uintptr_t>(memory.data()) + offset) & ~(kPageBytes - 1);
  std::vector<unsigned char> pages((bytes + kPageBytes - 1) / kPageBytes);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), bytes, pages.data()), 0);
  return static_cast<size_t>(std::ranges::count_if(pages, [](auto page) { return page & 1; }));
}

TEST(HostMemory, IsTakenWhenItIsPopulated) {
  for (const bool huge_pages : {false, true}) {
    HostMemory memory = *HostMemory::Allocate(kBytes, "a test", huge_pages);
    EXPECT_EQ(ResidentPages(memory, 0, kBytes), 0u);
    const Status done = memory.Populate(kBytes / 2, kBytes / 4);
    if (done.code() == StatusCode::kUnimplemented) return;  // an older kernel
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_EQ(ResidentPages(memory, kBytes / 2, kBytes / 4), kBytes / 4 / kPageBytes);
    EXPECT_EQ(ResidentPages(memory, 0, kBytes / 4), 0u);
  }
}

TEST(HostMemory, KeepsWhatWasWrittenWhenItIsPopulated) {
  HostMemory memory = *HostMemory::Allocate(kBytes, "a test");
  auto* bytes = static_cast<unsigned char*>(memory.data());
  bytes[5] = 7;
  bytes[kBytes - 1] = 9;
  const Status done = memory.Populate(0, kBytes);
  if (done.code() == StatusCode::kUnimplemented) return;  // an older kernel
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_EQ(bytes[5], 7);
  EXPECT_EQ(bytes[kBytes - 1], 9);
  EXPECT_EQ(bytes[kBytes / 2], 0);
}

}  // namespace
}  // namespace millrace::tensor
