// ExportKvHead (kv_box.h) written down slowly: where the layout of kv_pool.h has each number.
#pragma once

#include "tensor/cpu/kv_box.h"

namespace millrace::tensor {

void ExportKvHeadRef(const KvHeadSpan& span, std::byte* keys, std::byte* values);

}  // namespace millrace::tensor
