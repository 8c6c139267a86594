#include "tensor/devices/make_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tensor/cpu/cpu_device.h"

namespace millrace::tensor {
namespace {

using MakeDeviceFn = Result<std::unique_ptr<Device>> (*)(const DeviceOptions&);

struct DeviceKind {
  std::string_view name;
  MakeDeviceFn make;
};

constexpr DeviceKind kDevices[] = {
#define MILLRACE_DEVICE(name, make) {name, make},
#include "tensor/devices/list.inc"
#undef MILLRACE_DEVICE
};

}  // namespace

Result<std::unique_ptr<Device>> MakeDevice(std::string_view name, const DeviceOptions& options) {
  for (const DeviceKind& kind : kDevices) {
    if (kind.name == name) return kind.make(options);
  }
  return InvalidArgument(fmt::format("this build has no device '{}'; it has {}", name,
                                     fmt::join(DeviceNames(), ", ")));
}

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  for (const DeviceKind& kind : kDevices) names.emplace_back(kind.name);
  return names;
}

}  // namespace millrace::tensor
