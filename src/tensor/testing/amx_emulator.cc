#include "tensor/testing/amx_emulator.h"

#include "tensor/cpu/amx.h"

#if defined(__x86_64__)

#include <hwy/targets.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "tensor/cpu/flush.h"

namespace millrace::tensor {
namespace {

struct Tiles {
  TileShapes shapes;
  uint8_t rows[8][16][64];
};
thread_local Tiles tiles;
std::atomic<int64_t> count{0};
struct sigaction before;

// An instruction with a VEX prefix of three bytes, map 0F38.
struct Instruction {
  int prefix = 0, opcode = 0;  // prefix: 0 none, 1: 66, 2: F3, 3: F2
  int reg = 0, rm = 0, vvvv = 0;
  bool memory = false;
  uint8_t* address = nullptr;  // without the index register, which is the stride
  int64_t stride = 0;
  int length = 0;
};

int64_t Register(const ucontext_t& context, int number) {
  static constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                   REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                   REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kOrder[number]];
}

int64_t Displacement(const uint8_t* at, int bytes) {
  if (bytes == 1) return static_cast<int8_t>(*at);
  int32_t value = 0;
  if (bytes == 4) std::memcpy(&value, at, 4);
  return value;
}

// False for anything but what a tile kernel uses.
bool Decode(const ucontext_t& context, Instruction& out) {
  const auto* start = reinterpret_cast<const uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  const uint8_t* at = start;
  if (at[0] != 0xc4 || (at[1] & 0x1f) != 2) return false;
  const int r = (~at[1] >> 7 & 1) * 8, x = (~at[1] >> 6 & 1) * 8, b = (~at[1] >> 5 & 1) * 8;
  out.prefix = at[2] & 3;
  out.vvvv = ~(at[2] >> 3) & 15;
  out.opcode = at[3];
  const int modrm = at[4], mod = modrm >> 6, rm = modrm & 7;
  out.reg = (modrm >> 3 & 7) + r;
  out.rm = rm + b;
  at += 5;
  out.memory = mod != 3;
  if (out.memory) {
    int64_t base;
    int bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    if (rm == 4) {
      const int sib = *at++, index = (sib >> 3 & 7) + x, base_register = (sib & 7) + b;
      if (index != 4) out.stride = Register(context, index) << (sib >> 6);
      const bool none = mod == 0 && (sib & 7) == 5;
      if (none) bytes = 4;
      base = none ? 0 : Register(context, base_register);
    } else if (mod == 0 && rm == 5) {  // relative to the next instruction
      bytes = 4;
      base = reinterpret_cast<int64_t>(at + 4);
    } else {
      base = Register(context, out.rm);
    }
    out.address = reinterpret_cast<uint8_t*>(base + Displacement(at, bytes));
    at += bytes;
  }
  out.length = static_cast<int>(at - start);
  return true;
}

void Load(int tile, const uint8_t* from, int64_t stride) {
  std::memset(tiles.rows[tile], 0, sizeof(tiles.rows[tile]));
  for (int r = 0; r < tiles.shapes.rows[tile]; ++r) {
    std::memcpy(tiles.rows[tile][r], from + r * stride, tiles.shapes.row_bytes[tile]);
  }
}

void Store(int tile, uint8_t* to, int64_t stride) {
  for (int r = 0; r < tiles.shapes.rows[tile]; ++r) {
    std::memcpy(to + r * stride, tiles.rows[tile][r], tiles.shapes.row_bytes[tile]);
  }
}

float FloatAt(const uint8_t* word, int half) {  // the bf16 in one half of it
  uint32_t bits;
  std::memcpy(&bits, word, 4);
  bits = half == 0 ? bits << 16 : bits & 0xffff0000u;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

void Multiply(int sums, int a, int b) {
  const FlushDenormals flush;
  const int pairs = tiles.shapes.row_bytes[a] / 4;
  for (int m = 0; m < tiles.shapes.rows[sums]; ++m) {
    for (int n = 0; n < tiles.shapes.row_bytes[sums] / 4; ++n) {
      float parts[2] = {0, 0};
      for (int k = 0; k < pairs; ++k) {
        for (int half = 0; half < 2; ++half) {
          parts[half] = std::fma(FloatAt(tiles.rows[a][m] + 4 * k, half),
                                 FloatAt(tiles.rows[b][k] + 4 * n, half), parts[half]);
        }
      }
      float sum;
      std::memcpy(&sum, tiles.rows[sums][m] + 4 * n, 4);
      sum += parts[0] + parts[1];
      std::memcpy(tiles.rows[sums][m] + 4 * n, &sum, 4);
    }
  }
}

bool Execute(const Instruction& in) {
  constexpr int k66 = 1, kF3 = 2, kF2 = 3;
  switch (in.opcode) {
    case 0x49:
      if (in.memory) {
        std::memcpy(&tiles.shapes, in.address, sizeof(TileShapes));
      } else if (in.prefix == kF2) {
        std::memset(tiles.rows[in.reg], 0, sizeof(tiles.rows[0]));
      } else {
        tiles = {};
      }
      return true;
    case 0x4b:
      if (in.prefix == kF2 || in.prefix == k66) Load(in.reg, in.address, in.stride);
      if (in.prefix == kF3) Store(in.reg, in.address, in.stride);
      return true;
    case 0x5c:
      if (in.prefix == kF3) Multiply(in.reg, in.rm, in.vvvv);
      return in.prefix == kF3;
    default: return false;
  }
}

void OnIllegalInstruction(int, siginfo_t*, void* context_pointer) {
  auto& context = *static_cast<ucontext_t*>(context_pointer);
  Instruction in;
  if (Decode(context, in) && Execute(in)) {
    context.uc_mcontext.gregs[REG_RIP] += in.length;
    count.fetch_add(1, std::memory_order_relaxed);
  } else {
    sigaction(SIGILL, &before, nullptr);  // the instruction runs again, and fails for good
  }
}

}  // namespace

int64_t AmxEmulator::executed() { return count; }

bool AmxEmulator::IsPossible() {
  return !AmxIsThere() && HasAmxVectors() && (hwy::SupportedTargets() & HWY_AVX3) != 0;
}

AmxEmulator::AmxEmulator() {
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  MR_CHECK(sigaction(SIGILL, &action, &before) == 0);
  SetAmxForTest(true);
}

AmxEmulator::~AmxEmulator() {
  SetAmxForTest(false);
  sigaction(SIGILL, &before, nullptr);
}

}  // namespace millrace::tensor

#else

namespace millrace::tensor {
int64_t AmxEmulator::executed() { return 0; }
bool AmxEmulator::IsPossible() { return false; }
AmxEmulator::AmxEmulator() = default;
AmxEmulator::~AmxEmulator() = default;
}  // namespace millrace::tensor

#endif
