#include "bench/tiles.h"

#include "tensor/cpu/amx.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16")
namespace millrace::bench {

double MultiplyTiles(int64_t rounds) {
  tensor::TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.row_bytes[i] = 64;
    shapes.rows[i] = 16;
  }
  const tensor::TileSession session(shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(rounds);
}

}  // namespace millrace::bench
HWY_POP_ATTRIBUTES

#else

namespace millrace::bench {
double MultiplyTiles(int64_t) { return 0; }
}  // namespace millrace::bench

#endif
