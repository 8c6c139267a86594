// MakeDevice: the devices of this build by name. Whoever runs a model makes its device here, so
// that no other code names a kind of device. Pure but for the device that is made; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/device.h"

namespace millrace::tensor {

inline constexpr std::string_view kCpu = "cpu";

// kInvalidArgument: no device of this build has that name, or the options do not fit it.
Result<std::unique_ptr<Device>> MakeDevice(std::string_view name, const DeviceOptions& options);

// In the order of list.inc.
std::vector<std::string> DeviceNames();

}  // namespace millrace::tensor
