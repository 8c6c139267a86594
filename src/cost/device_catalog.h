// DeviceCatalog: published device data, for planning on hardware that was not profiled. Values are
// per device, dense (without sparsity), as stated by the manufacturers. Prices are typical
// on-demand list prices per device and become outdated; a cluster file states its own. Immutable;
// any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::cost {

enum class DeviceKind { kGpu, kUnifiedMemory, kCpu };

struct DeviceSpec {
  std::string_view name;  // "a100-80gb": the key, as in NodeSpec::device
  DeviceKind kind = DeviceKind::kGpu;
  int64_t memory_bytes = 0;
  double flops = 0;  // bf16 or fp16 products summed in f32, per second
  double memory_bytes_per_s = 0;
  double link_bytes_per_s = 0;    // to other devices in the machine, each direction
  double price_usd_per_hour = 0;  // 0: owned, not rented
};

std::span<const DeviceSpec> DeviceCatalog();

// Finds a device by name in any case. A short name such as "A100" means the version with the least
// memory. kNotFound lists the catalog.
Result<DeviceSpec> FindDevice(std::string_view name);

}  // namespace millrace::cost
