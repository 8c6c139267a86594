#include "cluster/store/store.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::cluster {
namespace {

constexpr size_t kClusterNameBytesMax = 64;

}  // namespace

Status CheckStoreKey(std::string_view key) {
  if (key.empty()) return InvalidArgument("a store key must not be empty");
  if (key.size() > kStoreKeyBytesMax) {
    return InvalidArgument(fmt::format("a store key has at most {} bytes, but this one has {}",
                                       kStoreKeyBytesMax, key.size()));
  }
  return OkStatus();
}

Status CheckStoreValue(std::string_view value) {
  if (value.size() <= kStoreValueBytesMax) return OkStatus();
  return InvalidArgument(fmt::format("a store value has at most {} bytes, but this one has {}",
                                     kStoreValueBytesMax, value.size()));
}

Status CheckLeaseTtl(Duration ttl) {
  if (ttl > Duration{} && ttl <= kLeaseTtlMax) return OkStatus();
  return InvalidArgument(
      fmt::format("the time of a lease must be more than 0 and at most {} s, not {} s",
                  kLeaseTtlMax.seconds(), ttl.seconds()));
}

Status CheckClusterName(std::string_view name) {
  const bool usable = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (usable && !name.empty() && name.size() <= kClusterNameBytesMax) return OkStatus();
  return InvalidArgument(fmt::format(
      "a cluster's name must have 1 to {} characters: letters, digits, '-', '_' and '.'",
      kClusterNameBytesMax));
}

std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

}  // namespace millrace::cluster
