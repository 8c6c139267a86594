// TokenView: the tokens of a sequence (its prompt, then its output) without copying them together.
// Views; valid as long as both parts are.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/ids.h"

namespace millrace::kv {

struct TokenView {
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;

  int size() const { return static_cast<int>(prompt.size() + output.size()); }
  TokenId operator[](int i) const {
    const int split = static_cast<int>(prompt.size());
    return i < split ? prompt[i] : output[i - split];
  }

  // Appends tokens [start, start + count) to `to`. REQUIRES: within size().
  void AppendTo(std::vector<TokenId>& to, int start, int count) const {
    const int split = static_cast<int>(prompt.size());
    const int of_prompt = std::clamp(split - start, 0, count);
    if (of_prompt > 0) {
      const auto head = prompt.subspan(start, of_prompt);
      to.insert(to.end(), head.begin(), head.end());
    }
    if (of_prompt == count) return;
    const auto tail = output.subspan(start + of_prompt - split, count - of_prompt);
    to.insert(to.end(), tail.begin(), tail.end());
  }

  // Tokens [start, start + count); a range across the border is copied into `scratch`.
  // REQUIRES: within size(); scratch has room for count.
  std::span<const TokenId> Slice(int start, int count, std::span<TokenId> scratch) const {
    const int split = static_cast<int>(prompt.size());
    if (start + count <= split) return prompt.subspan(start, count);
    if (start >= split) return output.subspan(start - split, count);
    const auto head = prompt.subspan(start);
    std::copy(head.begin(), head.end(), scratch.begin());
    const auto tail = output.first(count - head.size());
    std::copy(tail.begin(), tail.end(), scratch.begin() + head.size());
    return scratch.first(count);
  }
};

}  // namespace millrace::kv
