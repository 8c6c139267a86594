#include "text/ffi.h"

#include <fmt/format.h>

namespace millrace::text {

Status StatusOf(MrtCode code, const RustBytes& error) {
  switch (code) {
    case MRT_OK: return OkStatus();
    case MRT_INVALID:
    case MRT_LIMIT: return InvalidArgument(error.ToString());
    default: return Internal("the text library failed: " + error.ToString());
  }
}

Status CheckRustAbi() {
  if (uint32_t version = mrt_abi_version(); version != MRT_ABI_VERSION) {
    return Internal(fmt::format(
        "the Rust text library has ABI version {}, this program needs {}: build both from "
        "the same source",
        version, MRT_ABI_VERSION));
  }
  return OkStatus();
}

}  // namespace millrace::text
