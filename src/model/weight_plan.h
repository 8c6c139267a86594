// WeightPlan: which tensors a model has and what becomes of each. An architecture declares its
// weights once; loading, the memory check, the parameter count and make-model all read the same
// declaration. One thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/layers.h"
#include "model/weight_files.h"
#include "tensor/device.h"

namespace millrace::model {

enum class WeightKind { kMatrix, kTable, kBias, kNormWeight };

struct WeightNeed {
  std::string name;  // as in the file
  std::vector<int64_t> shape;
  WeightKind kind = WeightKind::kMatrix;

  int64_t elements() const;
};

// What goes into one Linear: parts stacked along n, for one product instead of several.
struct LinearNeed {
  struct Part {
    std::string name;  // without ".weight" and ".bias"
    int n = 0;
  };
  std::vector<Part> parts;
  int k = 0;
  bool bias = false;
  bool transposed = false;       // GPT-2's Conv1D: [k, n] in the file
  bool row_parallel = false;     // what tensor parallelism cuts along k: output projections
  int interleaved_head_dim = 0;  // GPT-NeoX: rows are q, k, v of head 0, of head 1, ... ; 0: not
};

class WeightPlan {
 public:
  // With `files`, names are looked up (Prefix); without, the first choice is taken (make-model).
  explicit WeightPlan(const WeightFiles* files) : files_(files) {}

  // The first of `choices` for which the files hold choice + probe; the first choice if none.
  std::string Prefix(std::initializer_list<std::string_view> choices, std::string_view probe) const;

  // The targets stay where they are until Load has returned.
  void Add(Linear& target, LinearNeed need);
  // Weight and bias (LayerNorm), or weight (RMS). Without `affine` the weight is one, the bias
  // none.
  void Add(Norm& target, const std::string& name, int size, NormKind kind, double epsilon,
           bool affine = true);
  void Add(Table& target, const std::string& name, int rows, int cols);

  // Every tensor once, in the order of loading.
  std::vector<WeightNeed> Needs() const;

  // Finds every tensor and checks dtype and shape, before any byte of weights is read.
  Status Resolve();
  int64_t stored_bytes() const;  // of Needs(), after Resolve
  DType dtype() const;           // of the first table or matrix, after Resolve

  // Packs tensor by tensor, reading ahead and giving pages back.
  Status Load(tensor::Device& device, const std::function<void(int64_t, int64_t)>& progress);

 private:
  struct Task {
    std::vector<WeightNeed> needs;
    std::vector<StoredTensor> stored;
    std::function<Status(tensor::Device&, std::span<const StoredTensor>)> build;
  };
  void Prefetch(size_t task) const;

  const WeightFiles* files_;
  std::vector<Task> tasks_;
};

// The elements of a stored F32, F16 or BF16 tensor as f32, whatever its alignment.
std::vector<float> ToFloats(const StoredTensor& tensor);

}  // namespace millrace::model
