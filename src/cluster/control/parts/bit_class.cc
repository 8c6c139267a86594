#include "cluster/control/parts/bit_class.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sha256.h"

namespace millrace::cluster {
namespace {

constexpr size_t kFingerprintDigits = 16;
constexpr size_t kClassNameMax = 64;

// Short, and without characters that would need quoting. A worker chooses it.
bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= kClassNameMax && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.';
  });
}

}  // namespace

std::string BitsFingerprint(std::string_view model_fingerprint, std::string_view numeric_class,
                            std::string_view kv_layout) {
  const std::string all = fmt::format("{}\n{}\n{}", model_fingerprint, numeric_class, kv_layout);
  const std::string digits = Hex(Sha256Of(all)).substr(0, kFingerprintDigits);
  return IsPlainName(numeric_class) ? fmt::format("fp_{}_{}", digits, numeric_class)
                                    : "fp_" + digits;
}

std::optional<BitClass> BitClasses::Of(std::string_view fingerprint) {
  const auto found = std::ranges::find(fingerprints_, fingerprint);
  if (found == fingerprints_.end() && !HasRoomFor(fingerprint)) return std::nullopt;
  const BitClass bits(static_cast<uint64_t>(found - fingerprints_.begin()));
  if (found == fingerprints_.end()) fingerprints_.emplace_back(fingerprint);
  return bits;
}

bool BitClasses::HasRoomFor(std::string_view fingerprint) const {
  return fingerprints_.size() < kClassesMax ||
         std::ranges::find(fingerprints_, fingerprint) != fingerprints_.end();
}

}  // namespace millrace::cluster
