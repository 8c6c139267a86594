// The operations of a model that are not products or attention: norms, rotary positions,
// activations, embeddings. One thread computes each row, in an order that no other row changes.
// CpuDevice distributes rows over threads.
// Pure functions over the caller's memory; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/device.h"

namespace millrace::tensor {

void RmsNormRows(Rows x, const float* weight, float epsilon, Rows y);
void LayerNormRows(Rows x, const float* weight, const float* bias /* or null */, float epsilon,
                   Rows y);
void RopeRows(Rows x, int head_dim, const int32_t* positions, const RopeAngles& table);
void ActivateRows(Rows x, Activation f, Rows y);
void GatedActivateRows(Rows gate, Rows up, Activation f, Rows y);
void AddRows(Rows x, Rows y);
// y = x + bias + residual; no bias: null, no residual: data == nullptr.
void FinishRows(Rows x, const float* bias, Rows residual, Rows y);
// y = x rounded to bf16. REQUIRES: y does not begin after x, nor has longer rows; then they may
// share memory.
void RoundRows(Rows x, Rows y);
// y[i] = e^((x[i] - top) * scale): what a softmax at a temperature adds up; exactly 0 below 2^-50.
// REQUIRES: no x[i] is above `top`, scale >= 0.
void ExpRow(std::span<const float> x, float top, float scale, float* y);
void EmbedRows(const HostMatrix& table, const int32_t* ids, Rows y, bool add);

}  // namespace millrace::tensor
