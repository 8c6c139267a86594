#include "net/data/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::net {
namespace {

constexpr uint32_t kPolynomial = 0x1EDC6F41;           // without x^32
constexpr uint32_t kPolynomialReflected = 0x82F63B78;  // the same, lowest power in the highest bit

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomialReflected : 0);
    t[0][i] = crc;
  }
  for (size_t k = 1; k < t.size(); ++k) {
    for (uint32_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xff];
  }
  return t;
}

constexpr Tables kTables = MakeTables();

// All of these take and return the inverted checksum. Eight bytes per lookup step.
uint32_t ByTable(const std::byte* p, size_t n, uint32_t crc) {
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; n > 0; ++p, --n) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*p)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

// x^power modulo the polynomial, in the form that carry-less products of reflected words need:
// reversed and shifted up by one.
constexpr uint64_t FoldConstant(int power) {
  uint32_t v = 1;
  for (int i = 0; i < power; ++i) v = (v << 1) ^ ((v >> 31) != 0 ? kPolynomial : 0);
  uint64_t reversed = 0;
  for (int bit = 0; bit < 32; ++bit)
    reversed |= static_cast<uint64_t>((v >> bit) & 1) << (31 - bit);
  return reversed << 1;
}

// Shifts 128 bits by `bits` positions: the factors for the low and the high half.
template <int bits>
struct Fold {
  static constexpr uint64_t kLow = FoldConstant(bits + 32);
  static constexpr uint64_t kHigh = FoldConstant(bits - 32);
};

__attribute__((target("sse4.2"))) uint32_t ByInstruction(const std::byte* p, size_t n,
                                                         uint32_t crc) {
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*p));
  return crc;
}

__attribute__((target("sse4.2,pclmul"))) inline __m128i FoldInto(__m128i x, __m128i k,
                                                                 __m128i next) {
  return _mm_xor_si128(
      _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next);
}

// Eight accumulators of 16 bytes; at the end they are a message with the same remainder.
__attribute__((target("sse4.2,pclmul"))) uint32_t ByFold128(const std::byte* p, size_t n,
                                                            uint32_t crc) {
  constexpr size_t kLanes = 8, kStep = kLanes * 16;
  if (n < 2 * kStep) return ByInstruction(p, n, crc);
  const __m128i k = _mm_set_epi64x(static_cast<int64_t>(Fold<kStep * 8>::kHigh),
                                   static_cast<int64_t>(Fold<kStep * 8>::kLow));
  __m128i x[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
  }
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  p += kStep;
  n -= kStep;
  for (; n >= kStep; p += kStep, n -= kStep) {
    for (size_t i = 0; i < kLanes; ++i) {
      x[i] = FoldInto(x[i], k, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i)));
    }
  }
  std::byte rest[kStep];
  for (size_t i = 0; i < kLanes; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rest + 16 * i), x[i]);
  }
  return ByInstruction(p, n, ByInstruction(rest, kStep, 0));
}

#define MR_FOLD512 __attribute__((target("sse4.2,avx512f,vpclmulqdq")))

MR_FOLD512 inline __m512i FoldInto(__m512i x, __m512i k, __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),
                                   _mm512_clmulepi64_epi128(x, k, 0x11), next, kXorOfThree);
}

MR_FOLD512 inline __m512i Factors(uint64_t low, uint64_t high) {
  const auto l = static_cast<int64_t>(low), h = static_cast<int64_t>(high);
  return _mm512_set_epi64(h, l, h, l, h, l, h, l);
}

// The next 64 bytes. kCopy: also written to `to`.
template <bool kCopy>
MR_FOLD512 inline __m512i Take(const std::byte* p, std::byte* to) {
  const __m512i bytes = _mm512_loadu_si512(p);
  if constexpr (kCopy) _mm512_storeu_si512(to, bytes);
  return bytes;
}

// Without kCopy, `to` is `p`. With it, `p` is read only once, because another process may be
// writing there; the sum is that of the copy.
template <bool kCopy>
MR_FOLD512 uint32_t Fold512(const std::byte* p, size_t n, uint32_t crc, std::byte* to) {
  constexpr size_t kLanes = 4, kStep = kLanes * 64;
  if (n < 2 * kStep) {
    if constexpr (kCopy) std::memcpy(to, p, n);
    return ByFold128(to, n, crc);
  }
  if constexpr (kCopy) {  // up to the next cache-line boundary of the destination
    const size_t head = -reinterpret_cast<uintptr_t>(to) % 64;
    std::memcpy(to, p, head);
    crc = ByInstruction(to, head, crc);
    p += head;
    to += head;
    n -= head;
  }
  const __m512i k = Factors(Fold<kStep * 8>::kLow, Fold<kStep * 8>::kHigh);
  __m512i x[kLanes];
  for (size_t i = 0; i < kLanes; ++i) x[i] = Take<kCopy>(p + 64 * i, to + 64 * i);
  x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  p += kStep;
  to += kStep;
  n -= kStep;
  for (; n >= kStep; p += kStep, to += kStep, n -= kStep) {
    for (size_t i = 0; i < kLanes; ++i) {
      x[i] = FoldInto(x[i], k, Take<kCopy>(p + 64 * i, to + 64 * i));
    }
  }
  if constexpr (kCopy) std::memcpy(to, p, n);
  const __m512i one = Factors(Fold<512>::kLow, Fold<512>::kHigh);
  for (size_t i = 1; i < kLanes; ++i) x[i] = FoldInto(x[i - 1], one, x[i]);
  std::byte rest[64];
  _mm512_storeu_si512(rest, x[kLanes - 1]);
  return ByInstruction(to, n, ByInstruction(rest, sizeof(rest), 0));
}

uint32_t ByFold512(const std::byte* p, size_t n, uint32_t crc) {
  return Fold512<false>(p, n, crc, const_cast<std::byte*>(p));
}
uint32_t CopyByFold512(const std::byte* p, size_t n, uint32_t crc, std::byte* to) {
  return Fold512<true>(p, n, crc, to);
}

#endif  // __x86_64__

using Function = uint32_t (*)(const std::byte*, size_t, uint32_t);

// Small enough to stay in the first-level cache for the second read, large enough to make few
// calls.
constexpr size_t kCopyPieceBytes = 32 << 10;

// Copies a piece and computes its checksum.
template <Function kSum>
uint32_t CopyAnd(const std::byte* p, size_t n, uint32_t crc, std::byte* to) {
  while (n > 0) {
    const size_t piece = std::min(n, kCopyPieceBytes);
    std::memcpy(to, p, piece);
    crc = kSum(to, piece, crc);
    p += piece;
    to += piece;
    n -= piece;
  }
  return crc;
}

struct Functions {
  Function sum = ByTable;
  uint32_t (*copy)(const std::byte*, size_t, uint32_t, std::byte*) = CopyAnd<ByTable>;
};

Functions FunctionsOf(internal::CrcKind kind) {
  switch (kind) {
    case internal::CrcKind::kTable: return {};
#if defined(__x86_64__)
    case internal::CrcKind::kFold128: return {ByFold128, CopyAnd<ByFold128>};
    case internal::CrcKind::kFold512: return {ByFold512, CopyByFold512};
#else
    default: break;
#endif
  }
  return {};
}

}  // namespace

namespace internal {

bool CrcAvailable(CrcKind kind) {
  if (kind == CrcKind::kTable) return true;
#if defined(__x86_64__)
  const bool narrow = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  if (kind == CrcKind::kFold128) return narrow;
  return narrow && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
#else
  return false;
#endif
}

uint32_t Crc32cBy(CrcKind kind, std::span<const std::byte> bytes, uint32_t before) {
  MR_CHECK(CrcAvailable(kind));
  return ~FunctionsOf(kind).sum(bytes.data(), bytes.size(), ~before);
}

uint32_t CopyWithCrc32cBy(CrcKind kind, std::span<const std::byte> from, std::byte* to,
                          uint32_t before) {
  MR_CHECK(CrcAvailable(kind));
  return ~FunctionsOf(kind).copy(from.data(), from.size(), ~before, to);
}

std::string_view CrcKindName(CrcKind kind) {
  constexpr std::string_view kNames[] = {"table", "128-bit folding", "512-bit folding"};
  return kNames[static_cast<int>(kind)];
}

CrcKind BestCrc() {
  for (CrcKind kind : {CrcKind::kFold512, CrcKind::kFold128}) {
    if (CrcAvailable(kind)) return kind;
  }
  return CrcKind::kTable;
}

}  // namespace internal

namespace {

const Functions& Best() {
  static const Functions functions = FunctionsOf(internal::BestCrc());
  return functions;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before) {
  return ~Best().sum(bytes.data(), bytes.size(), ~before);
}

uint32_t CopyWithCrc32c(std::span<const std::byte> from, std::byte* to, uint32_t before) {
  return ~Best().copy(from.data(), from.size(), ~before, to);
}

}  // namespace millrace::net
