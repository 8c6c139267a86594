// The parts of a stored tensor that a rank packs: views of its rows or columns, in the order in
// which the layers need them. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "core/worker_messages.h"
#include "tensor/device.h"

namespace millrace::model {

// The contents of one Linear: parts stacked along n, for one product instead of several.
struct LinearNeed {
  struct Part {
    std::string name;  // without ".weight" and ".bias"
    int n = 0;
    int units = 0;  // heads or columns, of n / (sections * units) outputs each, that are split over
                    // ranks; 0: every rank has all
    int sections = 1;  // GPT-2: all of q, then all of k, then all of v, in one tensor
  };
  std::vector<Part> parts;
  int k = 0;
  bool bias = false;
  bool transposed = false;       // GPT-2's Conv1D: [k, n] in the file
  bool row_parallel = false;     // tensor parallelism cuts it along k: output projections
  bool gated = false;            // gates and what they gate (tensor::PackSpec)
  int interleaved_head_dim = 0;  // GPT-NeoX: rows are q, k, v of head 0, of head 1, ... ; 0: not
                                 // interleaved
};

// Outputs [first, first + count) of a part, contiguous in the file.
struct OutputRun {
  int first = 0, count = 0;
};
std::vector<OutputRun> OutputsOf(const LinearNeed& need, const LinearNeed::Part& part,
                                 TensorRank rank);

// The inputs that the rank multiplies: all, or its cut.
struct InputRange {
  int first = 0, count = 0;
};
InputRange InputsOf(const LinearNeed& need, TensorRank rank);

// Appends this rank's pieces of one part, whose tensor is at `data`.
void AppendPieces(const LinearNeed& need, const LinearNeed::Part& part, TensorRank rank,
                  DType dtype, const void* data, std::vector<tensor::HostMatrix>& pieces);

// The same outputs of the part's bias. Every rank has the whole bias of a row-parallel product.
void AppendBias(const LinearNeed& need, const LinearNeed::Part& part, TensorRank rank,
                const std::vector<float>& stored, std::vector<float>& bias);

}  // namespace millrace::model
