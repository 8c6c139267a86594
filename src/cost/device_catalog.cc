#include "cost/device_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/log.h"

namespace millrace::cost {
namespace {

constexpr int64_t kGB = 1'000'000'000;
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kTera = 1e12, kGiga = 1e9;
constexpr DeviceKind kGpu = DeviceKind::kGpu;
constexpr DeviceKind kUnified = DeviceKind::kUnifiedMemory;
constexpr DeviceKind kCpu = DeviceKind::kCpu;

// PCI Express x16, each direction: generation 3 is 16 GB/s, generation 4 is 32 GB/s.
constexpr double kPcie3 = 16 * kGiga, kPcie4 = 32 * kGiga;

// name, kind, memory, FLOP/s, memory bytes/s, link bytes/s, USD/h.
constexpr DeviceSpec kDevices[] = {
    // NVIDIA T4 datasheet: 16 GB, 65 TFLOPS FP16, 320 GB/s, PCIe 3. Price: AWS g4dn.xlarge.
    {"t4", kGpu, 16 * kGB, 65 * kTera, 320 * kGiga, kPcie3, 0.526},
    // NVIDIA L4 datasheet: 24 GB, 242 TFLOPS FP16 with sparsity, 300 GB/s, PCIe 4. AWS g6.xlarge.
    {"l4", kGpu, 24 * kGB, 121 * kTera, 300 * kGiga, kPcie4, 0.805},
    // NVIDIA A10 datasheet: 24 GB, 125 TFLOPS FP16, 600 GB/s, PCIe 4. Price: Azure NV36ads_A10_v5.
    {"a10", kGpu, 24 * kGB, 125 * kTera, 600 * kGiga, kPcie4, 3.20},
    // NVIDIA V100 SXM2 datasheet: 125 TFLOPS, 900 GB/s, NVLink 300 GB/s both ways. AWS p3.2xlarge
    // and an eighth of p3dn.24xlarge.
    {"v100-16gb", kGpu, 16 * kGB, 125 * kTera, 900 * kGiga, 150 * kGiga, 3.06},
    {"v100-32gb", kGpu, 32 * kGB, 125 * kTera, 900 * kGiga, 150 * kGiga, 3.90},
    // NVIDIA A100 SXM4 datasheet: 312 TFLOPS, 1,555 and 2,039 GB/s, NVLink 600 GB/s both ways. An
    // eighth of AWS p4d.24xlarge and p4de.24xlarge.
    {"a100-40gb", kGpu, 40 * kGB, 312 * kTera, 1555 * kGiga, 300 * kGiga, 4.10},
    {"a100-80gb", kGpu, 80 * kGB, 312 * kTera, 2039 * kGiga, 300 * kGiga, 5.12},
    // NVIDIA H100 SXM5 datasheet: 1,979 TFLOPS with sparsity, 3.35 TB/s, NVLink 900 GB/s both ways.
    // An eighth of AWS p5.48xlarge, 2024.
    {"h100-80gb", kGpu, 80 * kGB, 989 * kTera, 3350 * kGiga, 450 * kGiga, 12.29},
    // NVIDIA H200 SXM datasheet: 141 GB, 4.8 TB/s, the arithmetic of the H100. An eighth of Azure
    // ND96isr_H200_v5.
    {"h200-141gb", kGpu, 141 * kGB, 989 * kTera, 4800 * kGiga, 450 * kGiga, 10.60},
    // NVIDIA L40S datasheet: 48 GB, 733 TFLOPS with sparsity, 864 GB/s, PCIe 4. AWS g6e.xlarge.
    {"l40s", kGpu, 48 * kGB, 362 * kTera, 864 * kGiga, kPcie4, 1.861},
    // NVIDIA GA102 whitepaper: 24 GB, 71 TFLOPS FP16 summed in FP32, 936 GB/s, PCIe 4. Price of a
    // community market.
    {"rtx3090", kGpu, 24 * kGB, 71 * kTera, 936 * kGiga, kPcie4, 0.22},
    // NVIDIA AD102 whitepaper: 24 GB, 165 TFLOPS FP16 summed in FP32, 1,008 GB/s, PCIe 4. Price of
    // a community market.
    {"rtx4090", kGpu, 24 * kGB, 165 * kTera, 1008 * kGiga, kPcie4, 0.40},
    // Apple M2 Ultra and M3 Max: 800 and 400 GB/s of unified memory, GPU arithmetic of 27.2 and
    // 14.2 TFLOPS (32-bit; half precision is no faster). The link is Thunderbolt 4, 40 Gbit/s.
    {"apple-m2-ultra", kUnified, 192 * kGiB, 27.2 * kTera, 800 * kGiga, 5 * kGiga, 0},
    {"apple-m3-max", kUnified, 128 * kGiB, 14.2 * kTera, 400 * kGiga, 5 * kGiga, 0},
    // CPUs, by arithmetic: cores x 64 FLOP per cycle (two 512-bit FMA units, f32) x 2.5 GHz. Two
    // cores of a shared server get the bandwidth of one DDR4 channel; a 32-core socket has eight
    // channels of DDR5-4800. Links: 10 and 25 Gbit/s Ethernet. AWS m7i.large and m7i.16xlarge.
    {"cpu-2core", kCpu, 8 * kGiB, 0.32 * kTera, 20 * kGiga, 1.25 * kGiga, 0.101},
    {"cpu-32core", kCpu, 256 * kGiB, 5.12 * kTera, 307 * kGiga, 3.125 * kGiga, 3.226},
};

// "A100_80GB" and "a100-80gb" are the same name.
std::string Normalised(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

}  // namespace

std::span<const DeviceSpec> DeviceCatalog() { return kDevices; }

Result<DeviceSpec> FindDevice(std::string_view name) {
  const std::string wanted = Normalised(name);
  std::string known;
  for (const DeviceSpec& device : kDevices) {
    if (Normalised(device.name) == wanted) return device;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", device.name);
  }
  for (const DeviceSpec& device : kDevices) {
    const std::string_view model = device.name.substr(0, device.name.find('-'));
    if (model.size() < device.name.size() && device.kind == kGpu && Normalised(model) == wanted) {
      return device;
    }
  }
  return NotFound(fmt::format("no device \"{}\"; the catalog has {}", Printable(name), known));
}

}  // namespace millrace::cost
