// AMX, the matrix tiles of some Xeons: whether this process may use them, and the state that a
// thread needs to use them. Process-wide; any thread.
#pragma once

#include <cstdint>

namespace millrace::tensor {

// Whether the processor has tiles for bf16 and the system lets this process use them. The first
// call asks the system for it.
bool AmxIsThere();
// For amx_emulator.h only. The first: whether the processor has the byte operations of AVX-512 that
// code for tiles uses beside them, as all processors with tiles do.
bool HasAmxVectors();
void SetAmxForTest(bool there);

// The shapes of the eight tiles, as the processor reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, first_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// Call it between stores and the tile loads that read them: GCC 12's intrinsic does not say that it
// reads memory, so the compiler might store later.
inline void StoresBeforeTileLoads() { __asm__ volatile("" ::: "memory"); }

// While one lives, its thread has these tiles. Afterwards the system need not save 8 KiB of them
// whenever it switches threads.
class TileSession {
 public:
  explicit TileSession(const TileShapes& shapes);
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

}  // namespace millrace::tensor
