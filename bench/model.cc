// Whole models against the machine's roofline, in one run: decode of one sequence against read
// bandwidth, prefill and decode of many against the FMA peak. Each repeat is paired with a sample
// of the roofline; the printed ratio is the median of the repeats' own ratios.
//
// FLOPs are those of the weight products and of attention. Norms, activations and the embedding
// look-up add time but no counted work. Bytes are those of the weights' type, even if fewer are
// stored: bf16 in 12 bits may exceed 100 %.
#include "model/model.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "bench/machine.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::bench {
namespace {

struct Options {
  int threads = 2;
  int repeats = 15;
  std::string only;  // a shape; empty: all of them
  std::string models = "/tmp/millrace-bench";
};

template <typename T>
T Must(Result<T> result) {
  MR_CHECK(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

std::string FolderOf(const Options& options, const std::string& shape) {
  const std::string folder = options.models + "/" + shape;
  if (!std::filesystem::exists(folder)) {
    std::filesystem::create_directories(options.models);
    fmt::print(stderr, "making {} (once)...\n", folder);
    const Status made = model::MakeModel(Must(model::ShapeConfig(shape)), folder, {});
    MR_CHECK(made.ok()) << made.ToString();
  }
  return folder;
}

// A model, a cache, and batches of `sequences` rows of equal length at equal positions.
class Runner {
 public:
  Runner(const Options& options, const std::string& shape, int sequences, int context_max)
      : device_(Must(tensor::NewCpuDevice({.threads = options.threads}))) {
    model::LoadOptions load;
    load.max_batched_tokens = 512;
    model_ = Must(model::Model::Load(FolderOf(options, shape), *device_, load));
    constexpr int kBlockSize = 16;
    const int blocks_each = (context_max + kBlockSize - 1) / kBlockSize;
    kv_ = Must(device_->NewKvPool(model_->KvShapeFor(kBlockSize, blocks_each * sequences)));
    tables_.resize(static_cast<size_t>(sequences));
    BlockIndex next = 0;
    for (auto& table : tables_) {
      table.resize(static_cast<size_t>(blocks_each));
      std::iota(table.begin(), table.end(), next);
      next += blocks_each;
    }
  }

  // Computes tokens [start, start + count) of every sequence, and the logits of each last row.
  void Step(int start, int count) {
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions, last;
    std::vector<tensor::AttentionSpan> spans;
    for (const auto& table : tables_) {
      const int first = static_cast<int>(tokens.size());
      spans.push_back({first, count, start, table});
      for (int i = 0; i < count; ++i) {
        tokens.push_back((first + 7 * i) % model_->spec().vocab_size);
        positions.push_back(start + i);
      }
      last.push_back(first + count - 1);
    }
    const tensor::StepPart part{kv_.get(), 0, 0, static_cast<int>(tokens.size()), spans};
    const tensor::RowRange all = model_->Begin({tokens, positions, {&part, 1}, last});
    model_->Embed(all);
    MR_CHECK(model_->Layers(all).ok());
    logits_.resize(last.size() * static_cast<size_t>(model_->spec().vocab_size));
    device_->Read(model_->Head(0, static_cast<int>(last.size())), logits_.data());
  }

  // FLOPs of one Step: products of every layer's weights per row, the head per sequence, attention.
  double Flops(int start, int count) const {
    const ModelSpec& s = model_->spec();
    const double head = 2.0 * s.hidden_size * s.vocab_size;
    const double per_row = 2.0 * LayerParameters();
    const double mean_keys = start + (count + 1) / 2.0;
    const double attention = 4.0 * s.num_layers * s.num_heads * s.head_dim * mean_keys;
    return static_cast<double>(tables_.size()) * (count * (per_row + attention) + head);
  }
  double WeightBytes() const {
    const ModelSpec& s = model_->spec();
    const double head = static_cast<double>(s.hidden_size) * s.vocab_size;
    return (LayerParameters() + head) * static_cast<double>(BytesOf(s.dtype));
  }

 private:
  double LayerParameters() const {
    const ModelSpec& s = model_->spec();
    const double qkv =
        static_cast<double>(s.hidden_size) * (s.num_heads + 2.0 * s.num_kv_heads) * s.head_dim;
    const double out = static_cast<double>(s.hidden_size) * s.num_heads * s.head_dim;
    return s.num_layers * (qkv + out + 3.0 * s.hidden_size * s.intermediate_size);
  }

  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<tensor::KvPool> kv_;
  std::vector<std::vector<BlockIndex>> tables_;
  std::vector<float> logits_;
};

struct Row {
  std::string what;
  double milliseconds, achieved, roofline, ratio;
  std::string unit;
};

// Medians over repeats of `step`, each paired with a sample of the roofline; `work` in FLOP or
// bytes.
Row Measure(const Options& options, const std::string& what, const std::string& unit, double work,
            const std::function<double()>& sample_roofline, const std::function<void()>& step) {
  step();  // warm-up
  std::vector<double> seconds, achieved, roofline, ratio;
  for (int i = 0; i < options.repeats; ++i) {
    const double top = sample_roofline();
    const double begin = Now(Clock::kWall);
    step();
    const double took = Now(Clock::kWall) - begin;
    seconds.push_back(took * 1e3);
    achieved.push_back(work / took * 1e-9);
    roofline.push_back(top);
    ratio.push_back(achieved.back() / top);
  }
  return {what, Median(seconds), Median(achieved), Median(roofline), Median(ratio), unit};
}

void Run(const Options& options) {
  Machine machine;
  auto peak = [&] { return machine.SampleFmaGflops(options.threads); };
  auto read = [&] { return machine.SampleReadGbps(options.threads); };
  std::vector<Row> rows;
  for (const std::string shape : {"llama-1b", "llama-160m"}) {
    if (!options.only.empty() && options.only != shape) continue;
    Runner one(options, shape, 1, 1024);
    one.Step(0, 128);
    rows.push_back(Measure(options, shape + " bf16, decode, 1 sequence at context 128", "GB/s",
                           one.WeightBytes(), read, [&] { one.Step(128, 1); }));
    rows.push_back(Measure(options, shape + " bf16, prefill of 512 tokens", "GFLOP/s",
                           one.Flops(0, 512), peak, [&] { one.Step(0, 512); }));
  }
  if (options.only.empty() || options.only == "llama-160m") {
    Runner many(options, "llama-160m", 16, 256);
    for (int start = 0; start < 128; start += 32) many.Step(start, 32);
    rows.push_back(Measure(options, "llama-160m bf16, decode, 16 sequences at context 128",
                           "GFLOP/s", many.Flops(128, 1), peak, [&] { many.Step(128, 1); }));
  }
  fmt::print("Method: {} threads, medians of {} repeats, each beside a sample of the roofline.\n\n",
             options.threads, options.repeats);
  fmt::print("| what | ms | achieved | roofline | ratio |\n|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    fmt::print("| {} | {:.2f} | {:.1f} {} | {:.1f} {} | {:.0f} % |\n", row.what, row.milliseconds,
               row.achieved, row.unit, row.roofline, row.unit, row.ratio * 100);
  }
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app{"Whole models against this machine's roofline"};
  app.add_option("--threads", options.threads, "Threads of the device");
  app.add_option("--repeats", options.repeats, "Repeats of each measurement");
  app.add_option("--only", options.only, "Only this model")
      ->check(CLI::IsMember({"llama-1b", "llama-160m"}));
  app.add_option("--models", options.models, "Where the random models are made and kept");
  CLI11_PARSE(app, argc, argv);
  millrace::bench::Run(options);
  return 0;
}
