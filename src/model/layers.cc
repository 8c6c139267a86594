#include "model/layers.h"

namespace millrace::model {

using tensor::Rows;

Rows Attention::Attend(Pass& pass, Rows x) const {
  tensor::Device& device = pass.device;
  Rows all = pass.work.qkv->View(pass.rows(), q_columns() + 2 * kv_columns());
  qkv.Run(device, x, all);
  Rows q = all.Columns(0, q_columns());
  Rows k = all.Columns(q_columns(), kv_columns());
  Rows v = all.Columns(q_columns() + kv_columns(), kv_columns());
  if (q_norm) device.HeadRmsNorm(q, head_dim, *q_norm->weight, q_norm->epsilon);
  if (k_norm) device.HeadRmsNorm(k, head_dim, *k_norm->weight, k_norm->epsilon);
  if (rotary) {
    device.Rope(q, head_dim, pass.batch.positions, pass.rope);
    device.Rope(k, head_dim, pass.batch.positions, pass.rope);
  }
  Rows attended = pass.Normed(q_columns());
  for (const BatchKv& kv : pass.batch.kv) {
    const int layer = pass.layer - kv.first_layer;
    device.WriteKv(*kv.pool, layer, k, v, kv.spans);
    device.Attend(*kv.pool, layer, q, kv.spans, spec, attended);
  }
  return attended;
}

void GatedMlp::Run(Pass& pass, Rows x, Rows y, Rows residual) const {
  Rows both = pass.work.mlp->View(x.rows, 2 * columns);
  Rows gate = both.Columns(0, columns);
  gate_up.Run(pass.device, x, both);
  pass.device.GatedActivate(gate, both.Columns(columns, columns), activation, gate);
  down.Run(pass.device, gate, y, residual);
}

void Mlp::Run(Pass& pass, Rows x, Rows y, Rows residual) const {
  Rows inner = pass.work.mlp->View(x.rows, columns);
  up.Run(pass.device, x, inner);
  pass.device.Activate(inner, activation, inner);
  down.Run(pass.device, inner, y, residual);
}

}  // namespace millrace::model
