// RAII over the buffers and error codes of the Rust C ABI. Only for the .cc files of this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/ids.h"
#include "millrace_text.h"

namespace millrace::text {

// A buffer allocated by Rust; the destructor returns it.
class RustBytes {
 public:
  RustBytes() = default;
  RustBytes(const RustBytes&) = delete;
  RustBytes& operator=(const RustBytes&) = delete;
  ~RustBytes() { mrt_bytes_free(bytes_); }
  MrtBytes* out() { return &bytes_; }
  std::string ToString() const { return {reinterpret_cast<const char*>(bytes_.data), bytes_.size}; }

 private:
  MrtBytes bytes_ = {nullptr, 0};
};

class RustIds {
 public:
  RustIds() = default;
  RustIds(const RustIds&) = delete;
  RustIds& operator=(const RustIds&) = delete;
  ~RustIds() { mrt_ids_free(ids_); }
  MrtIds* out() { return &ids_; }
  std::vector<TokenId> ToVector() const { return {ids_.data, ids_.data + ids_.size}; }

 private:
  MrtIds ids_ = {nullptr, 0};
};

inline const uint8_t* Data(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}
inline std::string_view ViewOf(MrtView view) {
  return {reinterpret_cast<const char*>(view.data), view.size};
}

// Ok for MRT_OK. Both an exceeded limit and bad input are the sender's errors. The caller decides
// on kTooLarge for a long text, because it knows what the limit is for.
Status StatusOf(MrtCode code, const RustBytes& error);

// Ok when the linked Rust library has the ABI version of the header that this code includes.
Status CheckRustAbi();

}  // namespace millrace::text
