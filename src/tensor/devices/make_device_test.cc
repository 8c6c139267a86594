#include "tensor/devices/make_device.h"

#include <gtest/gtest.h>

namespace millrace::tensor {
namespace {

TEST(MakeDevice, MakesEachDeviceOfTheBuildByName) {
  EXPECT_EQ(DeviceNames().front(), kCpu);
  const auto device = MakeDevice(kCpu, {.threads = 1, .pin_threads = false});
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  EXPECT_FALSE((*device)->Name().empty());
}

TEST(MakeDevice, AnUnknownNameIsToldWhatThereIs) {
  const auto device = MakeDevice("abacus", {});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().message(), "this build has no device 'abacus'; it has cpu");
}

}  // namespace
}  // namespace millrace::tensor
