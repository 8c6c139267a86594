// EventQueue: the pending events of a virtual clock. Ties follow the order of Push, so that a run
// is a function of its inputs. A value; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace millrace::sim {

template <typename Event, typename Instant = Time>
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  // REQUIRES: !empty().
  Instant next_time() const { return heap_.front().at; }

  void Push(Instant at, Event event) {
    size_t i = heap_.size();
    heap_.push_back({at, pushed_++, std::move(event)});
    while (i > 0) {
      const size_t parent = (i - 1) / kArity;
      if (!(heap_[i] < heap_[parent])) break;
      std::swap(heap_[i], heap_[parent]);
      i = parent;
    }
  }

  // REQUIRES: !empty().
  Event Pop() {
    MR_CHECK(!heap_.empty());
    Event event = std::move(heap_.front().event);
    Entry last = std::move(heap_.back());
    heap_.pop_back();
    if (!heap_.empty()) SiftDown(std::move(last));
    return event;
  }

 private:
  // Four children per node: half the levels of a binary heap, and a node's children share cache
  // lines.
  static constexpr size_t kArity = 4;
  struct Entry {
    Instant at;
    uint64_t order = 0;
    Event event;
    bool operator<(const Entry& other) const {
      return at != other.at ? at < other.at : order < other.order;
    }
  };

  void SiftDown(Entry entry) {
    size_t hole = 0;
    for (;;) {
      const size_t first = hole * kArity + 1;
      if (first >= heap_.size()) break;
      size_t least = first;
      for (size_t c = first + 1; c < std::min(first + kArity, heap_.size()); ++c) {
        if (heap_[c] < heap_[least]) least = c;
      }
      if (!(heap_[least] < entry)) break;
      heap_[hole] = std::move(heap_[least]);
      hole = least;
    }
    heap_[hole] = std::move(entry);
  }

  std::vector<Entry> heap_;
  uint64_t pushed_ = 0;
};

}  // namespace millrace::sim
