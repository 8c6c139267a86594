// What CpuDevice makes of the host's memory, except weights (packed_matrix.h) and KV (kv_pool.h).
// Owned by the caller of the device; used by the device's thread.
#pragma once

#include <utility>

#include "tensor/cpu/memory.h"
#include "tensor/device.h"

namespace millrace::tensor {

class CpuBuffer : public Buffer {
 public:
  CpuBuffer(HostMemory memory, size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  Rows View(int rows, int cols, DType type) override {
    MR_CHECK(rows >= 0 && cols >= 0 && SaturatingProduct(rows, cols, BytesOf(type)) <= bytes_)
        << "[" << rows << ", " << cols << "] of " << DTypeName(type) << " in " << bytes_
        << " bytes";
    return {memory_.data(), rows, cols, cols, type};
  }

 private:
  HostMemory memory_;
  size_t bytes_;  // as asked for
};

class CpuVector : public Vector {
 public:
  // Padded with zeros to whole panels, because the product adds a bias 32 numbers at a time.
  CpuVector(HostMemory memory, size_t size) : memory_(std::move(memory)), size_(size) {}
  float* data() const { return static_cast<float*>(memory_.data()); }
  int size() const { return static_cast<int>(size_); }

 private:
  HostMemory memory_;
  size_t size_;
};

inline const float* DataOf(const Vector& vector, int size) {
  const auto& v = static_cast<const CpuVector&>(vector);
  MR_CHECK(v.size() == size) << "a vector of " << v.size() << " for " << size;
  return v.data();
}

struct CpuTable : Table {
  explicit CpuTable(const HostMatrix& rows) : rows(rows) {}
  const HostMatrix rows;  // in the mapped file
};

struct CpuRopeTable : RopeTable {
  explicit CpuRopeTable(const RopeAngles& angles) : angles(angles) {}
  const RopeAngles angles;
};

}  // namespace millrace::tensor
