#include "tensor/cpu/amx.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace millrace::tensor {

#if defined(__x86_64__)
namespace {

constexpr unsigned kAmxBF16 = 1u << 22, kAmxTile = 1u << 24;  // CPUID 7.0, EDX
constexpr unsigned kVbmi = 1u << 1, kVbmi2 = 1u << 6;         // ECX
constexpr int kRequestPermission = 0x1023, kTileData = 18;    // of arch_prctl

bool Ask() {
  unsigned a, b, c, d;
  if (!HasAmxVectors() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBF16) == 0 || (d & kAmxTile) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

__attribute__((target("amx-tile"))) void LoadShapes(const TileShapes& shapes) {
  // GCC 12's intrinsic names 8 of the 64 bytes that it reads, and drops stores to the others.
  __asm__ volatile("" ::"r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}

__attribute__((target("amx-tile"))) void Release() { _tile_release(); }

std::atomic<bool>& Answer() {
  static std::atomic<bool> there = Ask();
  return there;
}

}  // namespace

bool HasAmxVectors() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & kVbmi) != 0 && (c & kVbmi2) != 0;
}
bool AmxIsThere() { return Answer(); }
void SetAmxForTest(bool there) { Answer() = there; }

TileSession::TileSession(const TileShapes& shapes) { LoadShapes(shapes); }
TileSession::~TileSession() { Release(); }

#else
bool HasAmxVectors() { return false; }
bool AmxIsThere() { return false; }
void SetAmxForTest(bool) {}
TileSession::TileSession(const TileShapes&) {}
TileSession::~TileSession() = default;
#endif

}  // namespace millrace::tensor
