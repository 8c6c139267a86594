// StrongId: an integer that cannot be mistaken for another kind of integer.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace millrace {

template <typename Tag, typename Rep = uint64_t>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& os, StrongId id) { return os << id.value_; }

 private:
  Rep value_ = 0;
};

}  // namespace millrace

template <typename Tag, typename Rep>
struct std::hash<millrace::StrongId<Tag, Rep>> {
  size_t operator()(millrace::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>()(id.value());
  }
};
