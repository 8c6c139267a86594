// The CPU as a device (device_conformance.h), and what only it promises: memory, refusals, number
// formats.
#include "tensor/cpu/cpu_device.h"

#include <bit>
#include <cmath>
#include <fstream>

#include "tensor/cpu/kv_pool.h"
#include "tensor/cpu/memory.h"
#include "tensor/testing/device_conformance.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {
namespace {

// One thread, and several, which also cut long contexts.
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance,
                         testing::Values(DeviceCase{"one_thread", [] { return MakeCpu(1); }},
                                         DeviceCase{"three_threads", [] { return MakeCpu(3); }}),
                         DeviceCase::Name);

size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST(CpuDeviceTest, NamesTheTarget) {
  EXPECT_EQ(MakeCpu(3)->Name().substr(0, 4), "cpu ");
  EXPECT_EQ(MakeCpu(3)->Name().substr(MakeCpu(3)->Name().size() - 3), " x3");
  EXPECT_EQ(NewCpuDevice({.threads = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(NewCpuDevice({.threads = 100000}).status().code(), StatusCode::kInvalidArgument);
}

TEST(CpuDeviceTest, OutOfMemoryIsAnErrorWithTheSize) {
  auto device = MakeCpu(1);
  auto pool = device->NewKvPool({.num_layers = 80,
                                 .num_kv_heads = 64,
                                 .head_dim = 128,
                                 .block_size = 16,
                                 .num_blocks = 2000000000,
                                 .dtype = DType::kF32});
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(pool.status().message().find("167772160000000000 bytes"), std::string::npos)
      << pool.status().message();
}

TEST(CpuDeviceTest, AnUnusedPoolTakesNoMemory) {
  auto device = MakeCpu(1);
  const size_t before = ResidentBytes();
  auto pool = Must(device->NewKvPool({.num_layers = 8,
                                      .num_kv_heads = 8,
                                      .head_dim = 64,
                                      .block_size = 16,
                                      .num_blocks = 8192,
                                      .dtype = DType::kF32}));
  EXPECT_LT(ResidentBytes(), before + (size_t{8} << 20));
}

// Only the returned blocks lose their content, and only whole pages are given back.
TEST(CpuDeviceTest, ReturnsTheMemoryOfBlocks) {
  auto device = MakeCpu(1);
  auto made = Must(device->NewKvPool({.num_layers = 2,
                                      .num_kv_heads = 8,
                                      .head_dim = 64,
                                      .block_size = 16,
                                      .num_blocks = 512,
                                      .dtype = DType::kF32,
                                      .huge_pages = false}));
  auto& pool = static_cast<CpuKvPool&>(*made);
  ASSERT_EQ(pool.block_bytes(), 65536u);
  const auto fill = [&](BlockIndex block) {
    for (int layer = 0; layer < 2; ++layer)
      std::memset(pool.block(layer, block), 1 + block % 7, pool.block_bytes());
  };
  for (BlockIndex block = 0; block < 512; ++block) fill(block);
  const size_t full = ResidentBytes();
  std::vector<BlockIndex> odd;
  for (BlockIndex block = 511; block > 0; block -= 2) odd.push_back(block);
  pool.ReturnMemory(odd);
  EXPECT_LT(ResidentBytes(), full - odd.size() * 2 * 65536 + (size_t{2} << 20));
  for (int layer = 0; layer < 2; ++layer) {
    for (BlockIndex block = 0; block < 512; ++block) {
      const uint8_t expected = block % 2 == 0 ? static_cast<uint8_t>(1 + block % 7) : 0;
      ASSERT_EQ(pool.block(layer, block)[0], expected) << block;
      ASSERT_EQ(pool.block(layer, block)[65535], expected) << block;
    }
  }
  fill(1);  // it can be used again
  EXPECT_EQ(pool.block(1, 1)[100], 2);
}

TEST(CpuDeviceDeathTest, WrongShapesStopTheProgram) {
  auto device = MakeCpu(1);
  TestWeight w(DType::kF32, 8, 8, 1);
  auto packed = Must(device->Pack({.parts = {&w.host, 1}}));
  TestRows x(2, 9), y(2, 8);
  EXPECT_DEATH(device->MatMul(x.view(), *packed, y.view()), "");
  Rows narrow = x.view().Columns(0, 8);
  narrow.type = DType::kBF16;
  EXPECT_DEATH(device->MatMul(narrow, *packed, y.view()), "bfloat16");
}

// Every f16 and bf16 number survives a round trip; rounding is to nearest, ties to even.
TEST(Float16Test, EveryNumberSurvives) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float f = FloatFromF16(h), b = FloatFromBF16(h);
    ASSERT_TRUE(std::isnan(f) || F16FromFloat(f) == h) << bits;
    ASSERT_TRUE(std::isnan(b) || BF16FromFloat(b) == h) << bits;
  }
}

TEST(Float16Test, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float low = FloatFromF16(h), high = FloatFromF16(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact in f32
    ASSERT_EQ(F16FromFloat(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(F16FromFloat(65519.996f), 0x7bff);
  EXPECT_EQ(F16FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(F16FromFloat(-1e30f), 0xfc00);
  EXPECT_TRUE(std::isnan(FloatFromF16(F16FromFloat(NAN))));
  EXPECT_EQ(BF16FromFloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(BF16FromFloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_TRUE(std::isnan(FloatFromBF16(BF16FromFloat(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace millrace::tensor
