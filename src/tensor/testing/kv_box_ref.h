// Slow reference for ExportKvHead (kv_box.h): finds each number by the layout of kv_pool.h.
#pragma once

#include "tensor/cpu/kv_box.h"

namespace millrace::tensor {

void ExportKvHeadRef(const KvHeadSpan& span, std::byte* keys, std::byte* values);

}  // namespace millrace::tensor
