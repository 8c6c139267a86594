// Rows of the type that a product reads (PackedMatrix::input): the same bits as with f32 rows. A
// device whose products read f32 only has nothing to do here.
#include <numeric>

#include "tensor/testing/device_conformance.h"

namespace millrace::tensor {
namespace {

// The same numbers, rounded, on the device.
class NarrowRows {
 public:
  NarrowRows(Device& device, int rows, int cols, DType type)
      : device_(device),
        buffer_(Must(device.NewBuffer(BytesOf(type) * static_cast<size_t>(rows * cols)))),
        view_(buffer_->View(rows, cols, type)) {}
  NarrowRows(Device& device, TestRows& host, DType type)
      : NarrowRows(device, host.shape[0], host.shape[1], type) {
    const std::vector<uint16_t> numbers = Rounded(host, type);
    device.Write(numbers.data(), view_);
  }
  Rows view() const { return view_; }
  std::vector<uint16_t> Get() const {
    std::vector<uint16_t> numbers(static_cast<size_t>(view_.rows) * view_.cols);
    device_.Read(view_, numbers.data());
    return numbers;
  }

  static std::vector<uint16_t> Rounded(TestRows& host, DType type) {
    std::vector<uint16_t> numbers;
    for (int r = 0; r < host.shape[0]; ++r) {
      for (const float x : host.Copy(r)) {
        numbers.push_back(type == DType::kBF16 ? BF16FromFloat(x) : F16FromFloat(x));
      }
    }
    return numbers;
  }

 private:
  Device& device_;
  std::unique_ptr<Buffer> buffer_;
  Rows view_;
};

// What products with this weight read besides f32.
std::optional<DType> NarrowInput(const PackedMatrix& w) {
  if (w.input() == DType::kF32) return std::nullopt;
  return w.input();
}

// The same for weights of a type.
std::optional<DType> NarrowInput(Device& device, DType weights) {
  TestWeight w(weights, 8, 8, 3);
  return NarrowInput(*Must(device.Pack({.parts = {&w.host, 1}})));
}

TEST_P(DeviceConformance, ProductsOfNarrowRows) {
  constexpr int kK = 330, kN = 70;
  for (const DType dtype : kStorageTypes) {
    TestWeight w(dtype, kN, kK, 1);
    for (const bool row_parallel : {false, true}) {
      auto packed = Must(device().Pack({.parts = {&w.host, 1}, .row_parallel = row_parallel}));
      const std::optional<DType> type = NarrowInput(*packed);
      if (!type) continue;
      for (const int m : {1, 3, 4, 17, 530}) {
        TestRows x = TestRows::Random(m, kK, 5);
        const DeviceRows wide(device(), x), want(device(), {m, kN}), got(device(), {m, kN});
        const NarrowRows narrow(device(), x, *type);
        device().MatMul(wide.view(), *packed, want.view());
        device().MatMul(narrow.view(), *packed, got.view());
        ASSERT_EQ(got.Get().numbers, want.Get().numbers) << DTypeName(dtype) << ", " << m;
      }
    }
  }
}

// With panels that a device may join, and without. The result begins where the room for both does.
TEST_P(DeviceConformance, GatesWriteNarrowRows) {
  constexpr int kK = 96;
  for (const DType dtype : kStorageTypes) {
    const std::optional<DType> type = NarrowInput(device(), dtype);
    if (!type) continue;
    for (const auto& [m, n] : {std::pair{1, 64}, {3, 40}, {67, 96}, {60, 40}, {530, 64}}) {
      TestWeight gates(dtype, n, kK, 1), gated(dtype, n, kK, 7);
      const HostMatrix parts[] = {gates.host, gated.host};
      auto packed = Must(device().Pack({.parts = parts, .gated = true}));
      auto weight = NewVector(TestRows::Random(1, kK, 2));
      const NormSpec norm{NormKind::kRms, weight.get(), nullptr, 1e-5f};
      const DeviceRows x(device(), TestRows::Random(m, kK, 5)), normed(device(), {m, kK}),
          want(device(), {m, n});
      auto buffer = Must(device().NewBuffer(sizeof(float) * static_cast<size_t>(2 * m * n)));
      const Rows both = buffer->View(m, 2 * n), got = buffer->View(m, n, *type);
      device().GatedMatMul(x.view(), norm, normed.view(), *packed, nullptr, Activation::kSilu, both,
                           want.view());
      device().GatedMatMul(x.view(), norm, normed.view(), *packed, nullptr, Activation::kSilu, both,
                           got);
      std::vector<uint16_t> numbers(static_cast<size_t>(m) * n);
      device().Read(got, numbers.data());
      TestRows wide = want.Get();
      ASSERT_EQ(numbers, NarrowRows::Rounded(wide, *type)) << DTypeName(dtype) << ", " << m;
    }
  }
}

TEST_P(DeviceConformance, AttentionWritesNarrowRows) {
  constexpr int kLength = 40;
  for (const DType dtype : kStorageTypes) {
    const std::optional<DType> type = NarrowInput(device(), dtype);
    if (!type) continue;
    for (const int dim : {7, 40, 64}) {
      auto pool = NewPool(
          {.num_layers = 1, .num_kv_heads = 2, .head_dim = dim, .num_blocks = 3, .dtype = dtype});
      std::vector<BlockIndex> blocks(3);
      std::iota(blocks.rbegin(), blocks.rend(), 0);
      const AttentionSpan span{0, kLength, 0, blocks};
      const TestStep step(device(), *pool, {&span, 1});
      const DeviceRows kv(device(), TestRows::Random(kLength, 2 * dim, 1)),
          q(device(), TestRows::Random(kLength, 4 * dim, 2)), want(device(), {kLength, 4 * dim});
      const NarrowRows got(device(), kLength, 4 * dim, *type);
      device().WriteKv(step.all(), 0, kv.view(), kv.view());
      device().Attend(step.all(), 0, {0.3f, 0}, q.view(), want.view());
      device().Attend(step.all(), 0, {0.3f, 0}, q.view(), got.view());
      TestRows wide = want.Get();
      ASSERT_EQ(got.Get(), NarrowRows::Rounded(wide, *type)) << DTypeName(dtype) << ", " << dim;
    }
  }
}

}  // namespace
}  // namespace millrace::tensor
