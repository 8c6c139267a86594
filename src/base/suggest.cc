#include "base/suggest.h"

#include <algorithm>
#include <array>

namespace millrace {
namespace {

constexpr int kWordMax = 64;

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  if (a.size() > kWordMax || b.size() > kWordMax) return kWordMax;
  std::array<std::array<int, kWordMax + 1>, kWordMax + 1> d;
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitution = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::optional<std::string> Suggest(std::string_view word,
                                   const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  int best_distance = kWordMax;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  const int allowed = std::max<int>(1, static_cast<int>(word.size()) / 3);
  if (best != nullptr && best_distance <= allowed) return *best;
  for (const std::string& candidate : candidates) {
    if (word.size() >= 3 && candidate.starts_with(word)) return candidate;
  }
  return std::nullopt;
}

}  // namespace millrace
