// BitClass: workers of one class compute the same bits. Activations and KV never pass from one
// class to another, so every pipeline is of one class, and a request keeps to the class that
// computed its first token (docs/decisions/0021-bit-classes.md).
//
// BitClasses is the table of the classes that a controller has met, by fingerprint. It forgets
// none, because requests outlive workers. Owned by Membership. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong_id.h"

namespace millrace::cluster {

using BitClass = StrongId<struct BitClassTag>;

// "fp_" and 16 hexadecimal digits of all that decides the bits of an answer besides the request,
// and
// "_" and the numeric class if that is made of letters, digits, "-" and ".".
std::string BitsFingerprint(std::string_view model_fingerprint, std::string_view numeric_class,
                            std::string_view kv_layout);

class BitClasses {
 public:
  static constexpr size_t kClassesMax = 256;

  // The class of the fingerprint, which is added if it is new. nullopt: the table is full.
  std::optional<BitClass> Of(std::string_view fingerprint);
  bool HasRoomFor(std::string_view fingerprint) const;
  // REQUIRES: the class is of this table.
  const std::string& fingerprint(BitClass bits) const { return fingerprints_[bits.value()]; }

 private:
  std::vector<std::string> fingerprints_;  // by class
};

}  // namespace millrace::cluster
