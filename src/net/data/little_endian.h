// Fixed-width integers in little-endian order. REQUIRES room; callers check it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace millrace::net {

static_assert(std::endian::native == std::endian::little, "frames are written in memory order");

template <typename T>
void StoreLe(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

template <typename T>
T LoadLe(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace millrace::net
