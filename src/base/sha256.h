// Sha256: the SHA-256 of the bytes that were added since the last Take. The context of OpenSSL is
// kept and started over, which takes a third of the time of a new one for short inputs. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace millrace {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  Sha256();
  void Add(const void* data, size_t size);
  // With the zero at its end, so that two texts are told from their concatenation.
  void AddText(const std::string& text) { Add(text.data(), text.size() + 1); }
  Digest Take();  // and starts over

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

Sha256::Digest Sha256Of(std::string_view bytes);

// Two lower-case digits per byte.
std::string Hex(std::span<const uint8_t> bytes);

}  // namespace millrace
