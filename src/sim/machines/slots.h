// Slots: objects in flight, named by small numbers that fit into events. A number is reused after
// its object has arrived. A value; one thread.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace millrace::sim {

template <typename T>
class Slots {
 public:
  // Takes a slot with its previous content, so that it keeps its memory.
  int Take() {
    if (free_.empty()) {
      things_.emplace_back();
      return static_cast<int>(things_.size()) - 1;
    }
    const int slot = free_.back();
    free_.pop_back();
    return slot;
  }
  int Take(T thing) {
    const int slot = Take();
    (*this)[slot] = std::move(thing);
    return slot;
  }
  void Free(int slot) { free_.push_back(slot); }

  T& operator[](int slot) { return things_[static_cast<size_t>(slot)]; }
  const T& operator[](int slot) const { return things_[static_cast<size_t>(slot)]; }

 private:
  std::vector<T> things_;
  std::vector<int> free_;
};

}  // namespace millrace::sim
