#include "net/testing/in_process_collective.h"

#include <fmt/core.h>
#include <sys/mman.h>

namespace millrace::net {

Result<std::vector<std::unique_ptr<Collective>>> NewInProcessCollectives(int size,
                                                                         Duration deadline,
                                                                         size_t slot_floats) {
  MR_RETURN_IF_ERROR(CheckRank(0, size));
  const size_t bytes = SlotBytes(size, slot_floats);
  // Fresh pages are zero and take no memory until touched.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted(
        fmt::format("cannot allocate {} bytes for a collective of {} ranks", bytes, size));
  }
  const std::shared_ptr<void> memory(data, [bytes](void* p) { munmap(p, bytes); });
  std::vector<std::unique_ptr<Collective>> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(std::make_unique<SlotCollective>(
        SlotCollective::Options{rank, size, slot_floats, deadline}, memory));
  }
  return all;
}

}  // namespace millrace::net
