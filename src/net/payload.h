// Payload: bytes and the owner that keeps them alive. The data plane sends and delivers payloads
// without copying them. A value, cheap to copy; any thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace millrace::net {

class Payload {
 public:
  Payload() = default;
  // REQUIRES: `bytes` stay where they are, unchanged, while `owner` lives.
  Payload(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  static Payload CopyOf(std::span<const std::byte> bytes) {
    std::shared_ptr<std::byte[]> copy(new std::byte[bytes.size()]);
    if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
    const std::span<const std::byte> view(copy.get(), bytes.size());
    return {std::move(copy), view};
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace millrace::net
