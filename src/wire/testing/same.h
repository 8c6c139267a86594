// For tests: whether two of core's structs are equal in every field, at any depth. Reflection finds
// the fields, so a field added in core is compared without a change here.
#pragma once

#include <array>
#include <boost/pfr.hpp>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace millrace::wire::testing {

template <typename T>
bool Same(const T& a, const T& b);

namespace internal {

template <typename T, template <typename...> typename Template>
inline constexpr bool kIs = false;
template <template <typename...> typename Template, typename... Args>
inline constexpr bool kIs<Template<Args...>, Template> = true;

template <typename T>
bool SameFields(const T& a, const T& b) {
  bool same = true;
  boost::pfr::for_each_field(a, [&](const auto& field, auto index) {
    same = same && Same(field, boost::pfr::get<index>(b));
  });
  return same;
}

}  // namespace internal

template <typename T>
bool Same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, Status>) {
    return a.code() == b.code() && a.message() == b.message();
  } else if constexpr (internal::kIs<T, std::vector>) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!Same(a[i], b[i])) return false;
    }
    return true;
  } else if constexpr (internal::kIs<T, std::optional> || internal::kIs<T, std::shared_ptr>) {
    if (!a || !b) return !a && !b;
    return Same(*a, *b);
  } else if constexpr (internal::kIs<T, std::pair>) {
    return Same(a.first, b.first) && Same(a.second, b.second);
  } else if constexpr (internal::kIs<T, std::variant>) {
    return a.index() == b.index() && std::visit(
                                         [&](const auto& x) {
                                           using X = std::decay_t<decltype(x)>;
                                           return Same(x, std::get<X>(b));
                                         },
                                         a);
  } else if constexpr (requires { a == b; }) {
    return a == b;
  } else {
    return internal::SameFields(a, b);
  }
}

}  // namespace millrace::wire::testing
