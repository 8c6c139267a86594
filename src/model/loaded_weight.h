// LoadedWeight: what a device has of one Linear, Norm or Table. It is immutable and shared: a model
// that is loaded while another one of the same folder exists takes what that one has already, so
// layers move between ranges without being read again
// (docs/decisions/0024-weights-are-shared.md). It is freed with the last model that has it. Any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "tensor/objects.h"

namespace millrace::model {

struct LoadedWeight {
  std::unique_ptr<tensor::PackedMatrix> matrix;  // of a Linear
  std::unique_ptr<tensor::Vector> vector;        // of a Norm
  std::unique_ptr<tensor::Vector> bias;          // of either; may be null
  std::unique_ptr<tensor::Table> table;          // of a Table, which is read in place from:
  std::shared_ptr<const MappedFile> file;
  std::vector<uint8_t> aligned_copy;  // instead, if the tensor is unaligned in the file

  int64_t bytes = 0;  // as stored in the files
};

// By a key that names the tensors, their use and, where they are cut, the rank
// (WeightPlan).
using LoadedWeights = std::map<std::string, std::shared_ptr<const LoadedWeight>>;

}  // namespace millrace::model
