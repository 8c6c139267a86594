// Reference attention for the tests of attention.cc. In double precision, over keys and values that
// are contiguous per token.
#pragma once

#include "tensor/device.h"

namespace millrace::tensor {

// q: [rows, heads * head_dim], at positions start + row; keys, values: [tokens, kv_heads *
// head_dim] from position 0; out as q.
void AttendRef(Rows q, int start, Rows keys, Rows values, int head_dim, const AttentionSpec& spec,
               Rows out);

}  // namespace millrace::tensor
