// For tests: what every device must do, as one suite with the device as its parameter. Each call is
// compared with a slow reference; then come the rules of device.h: a row's bits depend neither on
// the rows beside it nor on where its blocks lie. A device instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance, testing::Values(...), DeviceCase::Name);
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "tensor/testing/test_util.h"

namespace millrace::tensor {

struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  // Of a result, relative to the larger of its magnitude and 1; of a product, for each of its
  // terms.
  double tolerance = 3e-6, product_tolerance = 2e-7;

  friend void PrintTo(const DeviceCase& c, std::ostream* out) { *out << c.name; }
  static std::string Name(const testing::TestParamInfo<DeviceCase>& info) {
    return info.param.name;
  }
};

// A matrix on a device. Between its rows are `gap` numbers, which calls must leave as they are.
class DeviceRows {
 public:
  DeviceRows(Device& device, TestRows host, int gap = 0);
  Rows view() const { return whole_.Columns(0, cols_); }
  Rows row(int r) const { return view().Slice(r, 1); }
  TestRows Get() const;
  void ExpectGaps() const;

 private:
  Device& device_;
  std::unique_ptr<Buffer> buffer_;
  int cols_;
  Rows whole_;
};

// x as a number of this type. Devices may round what meets weights or KV of 16 bits to their type,
// so the tests round it before.
float RoundTo(DType dtype, float x);

inline constexpr DType kStorageTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

class DeviceConformance : public testing::TestWithParam<DeviceCase> {
 public:
  struct Sequence;  // of a pool: what it computes with, and its results
  struct Chunk;     // of a sequence: what one step computes

 protected:
  DeviceConformance() : device_(GetParam().make()) {}
  Device& device() { return *device_; }

  void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, const char* what,
                  double tolerance = 0);
  std::unique_ptr<Vector> NewVector(TestRows values) {
    return Must(device().NewVector(values.Copy(0)));
  }
  std::unique_ptr<KvPool> NewPool(const KvShape& shape) { return Must(device().NewKvPool(shape)); }
  // One step of one layer. All chunks' pools have the same heads.
  void Run(const std::vector<Chunk>& chunks, const AttentionSpec& spec, int layer = 0);
  void ExpectReference(const Sequence& sequence, const AttentionSpec& spec);

  const std::unique_ptr<Device> device_;
};

}  // namespace millrace::tensor
