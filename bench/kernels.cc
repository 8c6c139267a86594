// The CPU kernels in ratios to the limits of the machine. Every sample of a kernel follows a sample
// of the roofline directly, so that other load on the machine mostly cancels out of the ratios. A
// weight's bytes are those of its type, even if fewer are stored.
//
//   build/release/bench/kernels [--threads 1 --threads 2] [--repeats N] [--only gemv]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "base/statistics.h"
#include "bench/machine.h"
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/cpu_features.h"
#include "tensor/cpu/float16.h"

namespace millrace::bench {
namespace {

using tensor::Device;

constexpr double kMinSampleSeconds = 0.02;
// Weights rotate through this much memory, so that they come from main memory as a model's do.
constexpr size_t kWeightBytes = size_t{640} << 20;

template <typename T>
T Must(Result<T> result) {
  MR_CHECK(result.ok()) << result.status().message();
  return std::move(result).value();
}

struct Options {
  std::vector<int> threads;
  int repeats = 15;
  std::string only;
  Clock clock = Clock::kWall;
};

class KernelBench {
 public:
  KernelBench(Machine& machine, const Options& options, int threads)
      : machine_(machine),
        options_(options),
        threads_(threads),
        device_(Must(tensor::NewCpuDevice({.threads = threads}))) {}

  void Gemms() {
    struct Shape {
      const char* name;
      int n, k;
      bool row_parallel;
    };
    const Shape shapes[] = {{"qkv 2048 -> 3072", 3072, 2048, false},
                            {"out 2048 -> 2048", 2048, 2048, true},
                            {"gate, up 2048 -> 16384", 16384, 2048, false},
                            {"down 8192 -> 2048", 2048, 8192, true},
                            {"down 5632 -> 2048", 2048, 5632, true},
                            {"llama-160m qkv 768 -> 2304", 2304, 768, false},
                            {"llama-160m out 768 -> 768", 768, 768, true},
                            {"llama-160m down 3072 -> 768", 768, 3072, true}};
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const Shape& shape : shapes) {
        if (dtype != DType::kBF16 && shape.n != 3072) continue;
        Gemm(shape.name, dtype, shape.n, shape.k, shape.row_parallel);
      }
    }
  }

  void Attentions() {
    // llama-1b: 32 heads of 64 over 8 KV heads.
    Attention("decode, 1 x 4096", 1, 4095, 1, 32, 8);
    Attention("decode, 16 x 1024", 16, 1023, 1, 32, 8);
    Attention("decode, 16 x 160, 12 heads", 16, 159, 1, 12, 12);
    Attention("prefill, 1 x 512", 1, 0, 512, 32, 8);
    Attention("prefill, 1 x 4096", 1, 0, 4096, 32, 8);
    Attention("chunk, 512 after 3584", 1, 3584, 512, 32, 8);
  }

  void Packing() {
    constexpr int kN = 16384, kK = 2048;
    if (!Wanted("pack bf16")) return;
    std::vector<uint16_t> numbers(static_cast<size_t>(kN) * kK, 0x3f80);
    const tensor::HostMatrix host{numbers.data(), DType::kBF16, kN, kK};
    const double bytes = 2.0 * static_cast<double>(numbers.size());
    Report("pack bf16 16384 x 2048", bytes, 0, [&] { Must(device_->Pack({.parts = {&host, 1}})); });
  }

  // Exports and imports the KV of a long sequence, as transfers do, on the caller's thread.
  void KvBoxes() {
    constexpr int kLayers = 8, kKvHeads = 8, kHeadDim = 64, kTokens = 2048, kBlockSize = 16;
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const std::string title = fmt::format("{} kv of 2048 tokens", DTypeName(dtype));
      if (!Wanted(title)) continue;
      constexpr int kBlocks = kTokens / kBlockSize;
      auto pool =
          Must(device_->NewKvPool({kLayers, kKvHeads, kHeadDim, kBlockSize, 2 * kBlocks, dtype}));
      std::vector<BlockIndex> table(kBlocks);
      for (int i = 0; i < kBlocks; ++i) table[i] = i * 37 % (2 * kBlocks);
      const tensor::PoolKvBox box{0, kLayers, 0, kKvHeads, 0, kTokens};
      std::vector<std::byte> dense(box.Bytes(pool->shape()));
      device_->ImportKv(*pool, box, table, dense);  // touches all pages
      const auto bytes = static_cast<double>(dense.size());
      Report("export " + title, bytes, 0, [&] { device_->ExportKv(*pool, box, table, dense); });
      Report("import " + title, bytes, 0, [&] { device_->ImportKv(*pool, box, table, dense); });
    }
  }

 private:
  bool Wanted(const std::string& name) const {
    return options_.only.empty() || name.find(options_.only) != std::string::npos;
  }

  void Gemm(const char* name, DType dtype, int n, int k, bool row_parallel) {
    std::vector<std::unique_ptr<tensor::PackedMatrix>> weights;
    const std::vector<uint8_t> numbers = NewWeight(dtype, static_cast<size_t>(n) * k);
    const tensor::HostMatrix host{numbers.data(), dtype, n, k};
    const size_t copies = std::max<size_t>(2, kWeightBytes / numbers.size());
    for (int m : {1, 4, 8, 16, 32, 128, 512}) {
      const std::string title =
          fmt::format("{} {} m={}", m == 1 ? "gemv" : "gemm", DTypeName(dtype), m) + ", " + name;
      if (!Wanted(title)) continue;
      while (weights.size() < copies) {
        weights.push_back(Must(device_->Pack({.parts = {&host, 1}, .row_parallel = row_parallel})));
      }
      auto x = NewRandom(m, k), y = NewRandom(m, n);
      size_t next = 0;
      Report(title, static_cast<double>(numbers.size()), 2.0 * m * n * k,
             [&] { device_->MatMul(x->View(m, k), *weights[next++ % copies], y->View(m, n)); });
    }
  }

  void Attention(const char* name, int sequences, int start, int rows, int heads, int kv_heads) {
    constexpr int kHeadDim = 64, kBlockSize = 16, kLayers = 4;
    const std::string title = std::string("attention bf16 ") + name;
    if (!Wanted(title)) return;
    const int blocks = (start + rows + kBlockSize - 1) / kBlockSize;
    auto pool = Must(device_->NewKvPool(
        {kLayers, kv_heads, kHeadDim, kBlockSize, blocks * sequences, DType::kBF16}));
    std::vector<BlockIndex> table(blocks * sequences);
    std::iota(table.begin(), table.end(), 0);
    std::vector<tensor::AttentionSpan> fill, spans;
    for (int i = 0; i < sequences; ++i) {
      const auto own = std::span(table).subspan(i * blocks, blocks);
      fill.push_back({0, start + rows, 0, own});
      spans.push_back({i * rows, rows, start, own});
    }
    auto keys = NewRandom(start + rows, kv_heads * kHeadDim);
    const tensor::Rows kv = keys->View(start + rows, kv_heads * kHeadDim);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const auto& span : fill) {
        BeginStep(*pool, {&span, 1});
        device_->WriteKv({0, start + rows}, layer, kv, kv);
      }
    }
    const int all = sequences * rows;
    auto q = NewRandom(all, heads * kHeadDim), out = NewRandom(all, heads * kHeadDim);
    const double pairs = rows * (start + (rows + 1) / 2.0) * sequences * heads;
    const double bytes = 2.0 * 2 * kHeadDim * kv_heads * (start + rows) * sequences;
    int layer = 0;
    BeginStep(*pool, spans);
    Report(title, bytes, 4.0 * kHeadDim * pairs, [&] {
      device_->Attend({0, all}, layer++ % kLayers, {.scale = 0.125f},
                      q->View(all, heads * kHeadDim), out->View(all, heads * kHeadDim));
    });
  }

  // A step over one pool. The spans stay where they are while it runs.
  void BeginStep(tensor::KvPool& pool, std::span<const tensor::AttentionSpan> spans) {
    const int rows = spans.back().first_row + spans.back().num_rows;
    positions_.resize(static_cast<size_t>(rows));
    part_ = {&pool, 0, 0, rows, spans};
    device_->BeginStep({.positions = positions_, .parts = {&part_, 1}});
  }

  // Roughly normally distributed, like trained weights: bf16 is stored in 12 bits
  // (tensor/cpu/short_bf16.h).
  static std::vector<uint8_t> NewWeight(DType dtype, size_t count) {
    std::vector<uint8_t> bytes(count * BytesOf(dtype));
    Rng rng(2);
    for (size_t i = 0; i < count; ++i) {
      double sum = -2;
      for (int k = 0; k < 4; ++k) sum += rng.Uniform();
      const auto x = static_cast<float>(0.03 * sum);
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[4 * i], &x, 4);
      } else {
        const uint16_t half =
            dtype == DType::kBF16 ? tensor::BF16FromFloat(x) : tensor::F16FromFloat(x);
        std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
    return bytes;
  }

  std::unique_ptr<tensor::Buffer> NewRandom(int rows, int cols) {
    auto buffer = Must(device_->NewBuffer(sizeof(float) * rows * cols));
    auto* numbers = static_cast<float*>(buffer->View(rows, cols).data);
    Rng rng(1);
    for (size_t i = 0; i < static_cast<size_t>(rows) * cols; ++i) {
      numbers[i] = static_cast<float>(rng.Uniform() - 0.5);
    }
    return buffer;
  }

  // Prints one line: the time of `run`, and its bytes and operations relative to the two limits.
  void Report(const std::string& title, double bytes, double operations,
              const std::function<void()>& run) {
    run();
    std::vector<double> times, read_ratios, peak_ratios, tile_ratios;
    for (int i = 0; i < options_.repeats; ++i) {
      const double read = machine_.SampleReadGbps(threads_) * 1e9;
      const double peak = machine_.SampleFmaGflops(threads_) * 1e9;
      const double tiles = machine_.SampleTileGflops(threads_) * 1e9;
      int runs = 0;
      double seconds = 0;
      const double begin = Now(options_.clock);
      do {
        run();
        ++runs;
        seconds = Now(options_.clock) - begin;
      } while (seconds < kMinSampleSeconds);
      times.push_back(seconds / runs);
      read_ratios.push_back(bytes / times.back() / read);
      peak_ratios.push_back(operations / times.back() / peak);
      tile_ratios.push_back(tiles == 0 ? 0 : operations / times.back() / tiles);
    }
    const double time = Median(times);
    fmt::print("| {} | {} | {:.3f} | {:.1f} | {:.0f} % | {:.0f} | {:.0f} % | {:.0f} % |\n", title,
               threads_, time * 1e3, bytes / time / 1e9, 100 * Median(read_ratios),
               operations / time / 1e9, 100 * Median(peak_ratios), 100 * Median(tile_ratios));
    std::fflush(stdout);
  }

  Machine& machine_;
  const Options& options_;
  const int threads_;
  std::unique_ptr<Device> device_;
  std::vector<int32_t> positions_;  // of the step
  tensor::StepPart part_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures the CPU kernels in ratios to the machine's roofline");
  app.add_option("--threads", options.threads, "thread counts to measure with (default 1 and 2)")
      ->check(CLI::Range(1, Machine::kMaxThreads));
  app.add_option("--repeats", options.repeats, "samples per median")->check(CLI::Range(1, 10000));
  app.add_option("--only", options.only, "only kernels whose name has this in it");
  bool cpu_time = false;
  app.add_flag("--cpu-time", cpu_time, "one thread by its CPU time: for a busy machine");
  std::string features;
  app.add_option("--cpu-features", features, "instruction set: amx, avx512 or avx2");
  CLI11_PARSE(app, argc, argv);
  if (!features.empty()) {
    const Status limited = tensor::LimitCpuFeatures(features);
    MR_CHECK(limited.ok()) << limited.message();
  }
  if (cpu_time) {
    options.clock = Clock::kCallerCpu;
    options.threads = {1};
  }
  if (options.threads.empty()) options.threads = {1, 2};
  fmt::print(
      "Medians of {} samples; ratios are to a sample of the roofline taken just before. Weights\n"
      "rotate through {} MiB; bytes are the weights or the KV read once. Without AMX the last "
      "column\n"
      "is 0.\n\n"
      "| kernel | threads | ms | GB/s | of bandwidth | GFLOP/s | of FMA peak | of tile peak |\n"
      "|---|---|---|---|---|---|---|---|\n",
      options.repeats, kWeightBytes >> 20);
  Machine machine(options.clock);
  for (int threads : options.threads) {
    KernelBench bench(machine, options, threads);
    bench.Gemms();
    bench.Attentions();
    bench.Packing();
    if (threads == 1) bench.KvBoxes();
  }
  return 0;
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) { return millrace::bench::Main(argc, argv); }
