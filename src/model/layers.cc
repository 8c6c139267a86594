#include "model/layers.h"

namespace millrace::model {

using tensor::Rows;

Rows Attention::Attend(Pass& pass, const Input& x) const {
  tensor::Device& device = pass.device;
  tensor::QkvSpec store{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  Rows all = pass.work.qkv->View(pass.rows(), store.q_columns() + 2 * store.kv_columns());
  qkv.Run(device, x, all);
  if (q_norm) {
    store.q_norm = q_norm->weight.get();
    store.k_norm = k_norm->weight.get();
    store.epsilon = q_norm->epsilon;
  }
  if (rotary) store.rope = pass.rope;
  device.StoreQkv(pass.at, pass.layer, store, all);
  Rows attended = pass.Normed(store.q_columns(), out.weight->input());
  device.Attend(pass.at, pass.layer, spec, all.Columns(0, store.q_columns()), attended);
  return attended;
}

void GatedMlp::Run(Pass& pass, const Norm& norm, Rows x, Rows normed, Rows y, Rows residual) const {
  Rows both = pass.work.mlp->View(x.rows, 2 * columns);
  const DType type = down.weight->input();
  Rows inner =
      type == DType::kF32 ? both.Columns(0, columns) : pass.work.mlp->View(x.rows, columns, type);
  pass.device.GatedMatMul(x, norm.spec(), normed, *gate_up.weight, gate_up.bias.get(), activation,
                          both, inner);
  down.Run(pass.device, inner, y, residual);
}

void Mlp::Run(Pass& pass, const Input& x, Rows y, Rows residual) const {
  Rows inner = pass.work.mlp->View(x.rows.rows, columns);
  up.Run(pass.device, x, inner);
  pass.device.Activate(inner, activation, inner);
  down.Run(pass.device, inner, y, residual);
}

}  // namespace millrace::model
