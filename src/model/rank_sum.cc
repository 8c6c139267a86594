#include "model/rank_sum.h"

#include <algorithm>
#include <span>

namespace millrace::model {

using tensor::Rows;

Result<std::unique_ptr<RankSum>> RankSum::New(net::Collective& collective, tensor::Device& device,
                                              int max_rows, int columns) {
  const int rows = std::min(max_rows, device.Limits().sum_rows);
  std::unique_ptr<RankSum> sum(new RankSum(collective, rows));
  MR_ASSIGN_OR_RETURN(sum->partial_,
                      device.NewBuffer(BytesOf(DType::kF32) * static_cast<size_t>(rows) *
                                       static_cast<size_t>(columns)));
  return sum;
}

void RankSum::Run(tensor::Device& device, Rows x, const tensor::PackedMatrix& weight, Rows y,
                  const tensor::MatMulExtras& extras) {
  for (int first = 0; first < x.rows && status_.ok(); first += rows_max_) {
    const int count = std::min(rows_max_, x.rows - first);
    Rows partial = partial_->View(count, y.cols, DType::kF32);  // what the collective adds
    device.MatMul(x.Slice(first, count), weight, partial);
    const size_t values = static_cast<size_t>(count) * static_cast<size_t>(y.cols);
    status_ = collective_->AllReduceSum({static_cast<float*>(partial.data), values});
    if (!status_.ok()) return;
    tensor::MatMulExtras of_rows{extras.bias, {}};
    if (extras.residual.data != nullptr) of_rows.residual = extras.residual.Slice(first, count);
    device.FinishProduct(partial, y.Slice(first, count), of_rows);
  }
}

}  // namespace millrace::model
