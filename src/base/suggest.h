// "Did you mean": the known word nearest to a mistyped one. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
// string alignment). Words longer than 64 bytes count as 64 edits apart.
int EditDistance(std::string_view a, std::string_view b);

// The candidate with the fewest edits, if few enough for its length or if one starts with the
// other; the first of equals.
std::optional<std::string> Suggest(std::string_view word,
                                   const std::vector<std::string>& candidates);

}  // namespace millrace
