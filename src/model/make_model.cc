#include "model/make_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/mutex.h"
#include "base/units.h"
#include "model/architecture.h"
#include "model/make_tokenizer.h"
#include "model/random_weights.h"
#include "model/weight_plan.h"

namespace millrace::model {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 20;  // a thread's buffer; a multiple of 4
constexpr unsigned kThreadsMax = 16;

// A tensor's position in its shard.
struct Placed {
  WeightNeed need;
  uint64_t key = 0;
  uint64_t offset = 0;  // bytes from the start of the shard's data
};

struct Shard {
  std::string name;
  std::vector<Placed> tensors;
  uint64_t data_bytes = 0;
};

// Distributes the tensors in order; a new shard starts where the next tensor would exceed the
// limit.
std::vector<Shard> Distribute(const std::vector<WeightNeed>& needs,
                              const MakeModelOptions& options) {
  std::vector<Shard> shards(1);
  for (const WeightNeed& need : needs) {
    const uint64_t bytes = static_cast<uint64_t>(need.elements()) * BytesOf(options.dtype);
    if (shards.back().data_bytes > 0 &&
        shards.back().data_bytes + bytes > options.shard_bytes_max) {
      shards.emplace_back();
    }
    Shard& shard = shards.back();
    shard.tensors.push_back({need, TensorKey(options.seed, need.name), shard.data_bytes});
    shard.data_bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

std::string HeaderOf(const Shard& shard, DType dtype) {
  const char* name = dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  for (const Placed& t : shard.tensors) {
    const uint64_t bytes = static_cast<uint64_t>(t.need.elements()) * BytesOf(dtype);
    header[t.need.name] = {
        {"dtype", name}, {"shape", t.need.shape}, {"data_offsets", {t.offset, t.offset + bytes}}};
  }
  std::string text = DumpJson(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

Status WriteAt(int fd, const std::string& path, const void* data, size_t size, uint64_t offset) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = pwrite(fd, from, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FailedPrecondition(fmt::format("{}: {}", path, std::strerror(errno)));
    from += n;
    size -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
  return OkStatus();
}

// Writes one shard's data with several threads, each taking the next piece.
class ShardWriter {
 public:
  ShardWriter(int fd, std::string path, const Shard& shard, DType dtype, uint64_t data_begin,
              std::function<Status(int64_t)> wrote)
      : fd_(fd),
        path_(std::move(path)),
        dtype_(dtype),
        data_begin_(data_begin),
        wrote_(std::move(wrote)) {
    for (const Placed& tensor : shard.tensors) {
      for (int64_t first = 0; first < tensor.need.elements(); first += kPieceElements) {
        pieces_.push_back({&tensor, first});
      }
    }
  }

  Status Run() {
    const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back([this] { Work(); });
    Work();
    for (std::thread& t : others) t.join();
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  struct Piece {
    const Placed* tensor;
    int64_t first;
  };

  void Work() {
    std::vector<uint8_t> buffer;
    for (size_t i = next_++; i < pieces_.size(); i = next_++) {
      const Placed& tensor = *pieces_[i].tensor;
      const int64_t first = pieces_[i].first;
      const int64_t count = std::min(kPieceElements, tensor.need.elements() - first);
      buffer.resize(static_cast<size_t>(count) * BytesOf(dtype_));
      FillWeights(tensor.key, tensor.need.kind, dtype_, first, buffer);
      const uint64_t at =
          data_begin_ + tensor.offset + static_cast<uint64_t>(first) * BytesOf(dtype_);
      Status status = WriteAt(fd_, path_, buffer.data(), buffer.size(), at);
      MutexLock lock(mutex_);
      if (!status_.ok()) return;
      status_ = status.ok() ? wrote_(static_cast<int64_t>(buffer.size())) : status;
    }
  }

  const int fd_;
  const std::string path_;
  const DType dtype_;
  const uint64_t data_begin_;
  const std::function<Status(int64_t)> wrote_;
  std::vector<Piece> pieces_;
  std::atomic<size_t> next_ = 0;
  Mutex mutex_;
  Status status_ MR_GUARDED_BY(mutex_);
};

Status WriteShard(const fs::path& folder, const Shard& shard, DType dtype,
                  const std::function<Status(int64_t)>& wrote) {
  const std::string path = (folder / shard.name).string();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FailedPrecondition(fmt::format("{}: {}", path, std::strerror(errno)));
  const std::string header = HeaderOf(shard, dtype);
  Status status = WriteAt(fd, path, header.data(), header.size(), 0);
  if (status.ok()) status = ShardWriter(fd, path, shard, dtype, header.size(), wrote).Run();
  if (close(fd) != 0 && status.ok()) {
    status = FailedPrecondition(fmt::format("{}: {}", path, std::strerror(errno)));
  }
  return status;
}

Status WriteTexts(const fs::path& folder, Json config, const ModelSpec& spec, DType dtype) {
  config["torch_dtype"] = DTypeName(dtype);
  const Json generation = {{"bos_token_id", kMadeBos}, {"eos_token_id", {kMadeEos}}};
  const std::pair<const char*, std::string> texts[] = {
      {"config.json", config.dump(2)},
      {"generation_config.json", generation.dump(2)},
      {"tokenizer.json", MadeTokenizerJson(spec.vocab_size)},
      {"tokenizer_config.json", MadeTokenizerConfigJson(spec.max_position)}};
  for (const auto& [name, text] : texts) {
    MR_RETURN_IF_ERROR(WriteFileAtomically((folder / name).string(), text));
  }
  return OkStatus();
}

Status WriteIndex(const fs::path& folder, const std::vector<Shard>& shards, uint64_t total) {
  if (shards.size() == 1) return OkStatus();
  Json map = Json::object();
  for (const Shard& shard : shards) {
    for (const Placed& tensor : shard.tensors) map[tensor.need.name] = shard.name;
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return WriteFileAtomically((folder / "model.safetensors.index.json").string(), index.dump(2));
}

Status WriteAll(const fs::path& folder, const Json& config, const ModelSpec& spec,
                const std::vector<Shard>& shards, const MakeModelOptions& options) {
  uint64_t total = 0;
  for (const Shard& shard : shards) total += shard.data_bytes;
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (!error && space.available < total) {
    return FailedPrecondition(fmt::format("{}: needs {} of disk space, {} is free", folder.string(),
                                          BytesText(static_cast<int64_t>(total)),
                                          BytesText(static_cast<int64_t>(space.available))));
  }
  MR_RETURN_IF_ERROR(WriteTexts(folder, config, spec, options.dtype));
  int64_t done = 0;
  for (const Shard& shard : shards) {
    MR_RETURN_IF_ERROR(WriteShard(folder, shard, options.dtype, [&](int64_t bytes) {
      done += bytes;
      if (options.progress) options.progress(done, static_cast<int64_t>(total));
      return options.go_on ? options.go_on() : OkStatus();
    }));
  }
  return WriteIndex(folder, shards, total);
}

}  // namespace

Status MakeModel(const Json& config, const std::string& folder, const MakeModelOptions& options) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, NewDecoder(config, "shape"));
  const ModelSpec& spec = decoder->dims().spec;
  if (spec.vocab_size < kMadeVocabMin || spec.vocab_size > kMadeVocabMax) {
    return InvalidArgument(
        fmt::format("a vocabulary of {} does not suit the byte-level tokenizer, which "
                    "takes {} to {} tokens",
                    spec.vocab_size, kMadeVocabMin, kMadeVocabMax));
  }
  WeightPlan plan(nullptr);
  decoder->Declare({0, spec.num_layers}, plan);
  const std::vector<Shard> shards = Distribute(plan.Needs(), options);

  fs::path target(folder);
  if (!target.has_filename()) target = target.parent_path();
  std::error_code error;
  if (fs::exists(target, error) && !fs::is_empty(target, error)) {
    return FailedPrecondition(folder + ": already exists; give another folder or remove it");
  }
  const fs::path partial = target.string() + ".partial";
  fs::remove_all(partial, error);
  if (!fs::create_directories(partial, error)) {
    return FailedPrecondition(fmt::format("{}: {}", partial.string(), error.message()));
  }
  Status status = WriteAll(partial, config, spec, shards, options);
  if (status.ok()) {
    fs::rename(partial, target, error);
    if (error) status = FailedPrecondition(fmt::format("{}: {}", folder, error.message()));
  }
  if (!status.ok()) fs::remove_all(partial, error);
  return status;
}

}  // namespace millrace::model
