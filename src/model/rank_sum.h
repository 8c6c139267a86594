// RankSum: a product whose K is cut over the ranks of a stage. Every rank multiplies its part, the
// ranks' sums are added pairwise, then bias and residual are added once, so the bits are those of
// one device (docs/decisions/0002-batch-invariance.md).
//
// Owned by the model and used by its thread. After a failure it computes nothing more and the rows
// are undefined: the model reports status() after every layer.
#pragma once

#include <memory>

#include "base/status.h"
#include "net/collective/collective.h"
#include "tensor/device.h"

namespace millrace::model {

class RankSum {
 public:
  // For products with up to `columns` outputs. The caller owns the collective, which adds in the
  // memory of this device.
  static Result<std::unique_ptr<RankSum>> New(net::Collective& collective, tensor::Device& device,
                                              int max_rows, int columns);

  // y = x W^T (over all ranks) + bias + residual. `residual` may be y.
  void Run(tensor::Device& device, tensor::Rows x, const tensor::PackedMatrix& weight,
           tensor::Rows y, const tensor::MatMulExtras& extras);

  const Status& status() const { return status_; }
  void UseCollective(net::Collective& collective) {
    collective_ = &collective;
    status_ = OkStatus();
  }

 private:
  RankSum(net::Collective& collective, int rows_max)
      : collective_(&collective), rows_max_(rows_max) {}

  net::Collective* collective_;
  const int rows_max_;                       // that are added together
  std::unique_ptr<tensor::Buffer> partial_;  // [rows, columns]
  Status status_;
};

}  // namespace millrace::model
