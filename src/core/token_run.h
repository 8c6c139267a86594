// TokenRun: the tokens of one output. There are a few at most and nearly always one, so they live
// in the object and a decode step allocates nothing. More than kInline move to the heap. A value.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/ids.h"

namespace millrace {

class TokenRun {
 public:
  static constexpr size_t kInline = 4;

  TokenRun() = default;
  TokenRun(std::initializer_list<TokenId> tokens) {
    for (TokenId token : tokens) push_back(token);
  }

  void push_back(TokenId token) {
    if (size_ < kInline) {
      inline_[size_++] = token;
      return;
    }
    if (size_ == kInline) heap_.assign(inline_.begin(), inline_.end());
    heap_.push_back(token);
    ++size_;
  }
  void clear() { *this = {}; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const TokenId* data() const { return size_ <= kInline ? inline_.data() : heap_.data(); }
  const TokenId* begin() const { return data(); }
  const TokenId* end() const { return data() + size_; }
  TokenId operator[](size_t i) const { return data()[i]; }
  TokenId front() const { return data()[0]; }
  TokenId back() const { return data()[size_ - 1]; }
  operator std::span<const TokenId>() const {
    return {data(), size_};
  }  // NOLINT: a view, by design

  friend bool operator==(const TokenRun& a, const TokenRun& b) { return std::ranges::equal(a, b); }
  friend bool operator==(const TokenRun& a, const std::vector<TokenId>& b) {
    return std::ranges::equal(a, b);
  }

 private:
  std::array<TokenId, kInline> inline_{};
  size_t size_ = 0;
  std::vector<TokenId> heap_;
};

}  // namespace millrace
