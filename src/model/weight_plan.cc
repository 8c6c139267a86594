#include "model/weight_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace millrace::model {
namespace {

// How far reading may be ahead of packing.
constexpr int64_t kReadAheadBytes = int64_t{256} << 20;

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t bits =
      sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A view of `tensor`, through `copy` when it is not aligned to its elements in the file.
const void* AlignedData(const StoredTensor& tensor, DType dtype, std::vector<uint8_t>& copy) {
  if (reinterpret_cast<uintptr_t>(tensor.data()) % BytesOf(dtype) == 0) return tensor.data();
  copy.assign(tensor.data(), tensor.data() + tensor.bytes());
  return copy.data();
}

Result<LoadedWeight> BuildLinear(const LinearNeed& need, TensorRank rank, tensor::Device& device,
                                 std::span<const StoredTensor> stored) {
  std::vector<std::vector<uint8_t>> copies(need.parts.size());
  std::vector<tensor::HostMatrix> pieces;
  const DType dtype = *stored[0].entry->compute_dtype();
  for (size_t i = 0; i < need.parts.size(); ++i) {
    if (stored[i].entry->compute_dtype() != dtype) {
      return InvalidArgument(
          fmt::format("{}: tensor `{}.weight` is {}, but `{}.weight` is {}; parts of "
                      "one layer must have one dtype",
                      *stored[i].path, need.parts[i].name, stored[i].entry->dtype,
                      need.parts[0].name, stored[0].entry->dtype));
    }
    AppendPieces(need, need.parts[i], rank, dtype, AlignedData(stored[i], dtype, copies[i]),
                 pieces);
  }
  const int degree = need.row_parallel ? rank.size : 1;
  LoadedWeight built;
  MR_ASSIGN_OR_RETURN(
      built.matrix, device.Pack({pieces, need.transposed, need.row_parallel, degree, need.gated}));
  if (!need.bias) return built;
  std::vector<float> bias;
  for (size_t i = 0; i < need.parts.size(); ++i) {
    AppendBias(need, need.parts[i], rank, ToFloats(stored[need.parts.size() + i]), bias);
  }
  MR_ASSIGN_OR_RETURN(built.bias, device.NewVector(bias));
  return built;
}

// Whether the tensors differ where they are compared: at their beginnings, middles and ends.
bool Differ(const StoredTensor& a, const StoredTensor& b) {
  constexpr size_t kCompared = 4096;
  if (a.entry->dtype != b.entry->dtype || a.bytes() != b.bytes()) return true;
  const size_t size = std::min(kCompared, a.bytes());
  for (const size_t at : {size_t{0}, (a.bytes() - size) / 2, a.bytes() - size}) {
    if (std::memcmp(a.data() + at, b.data() + at, size) != 0) return true;
  }
  return false;
}

// Of a vocabulary projection that is stored although it is tied to the embedding.
std::string UnusedHead(const WeightFiles& files, const std::string& head,
                       const std::string& embedding) {
  const auto own = files.Find(head + ".weight"), tied = files.Find(embedding + ".weight");
  const bool differ = own && tied && Differ(*own, *tied);
  return fmt::format(
      "{}: `{}.weight` is not used, because tie_word_embeddings of config.json is true: the "
      "vocabulary projection is `{}.weight`{}",
      files.folder(), head, embedding,
      differ ? ", which differs; if the model has a projection of its own, set it to false"
             : ", with the same values where they were compared");
}

using Shared = std::shared_ptr<const LoadedWeight>;

// A member of a weight that lives as long as the weight.
template <typename T>
std::shared_ptr<const T> MemberOf(const Shared& weight, const std::unique_ptr<T>& member) {
  return {weight, member.get()};
}

}  // namespace

int64_t WeightNeed::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::vector<float> ToFloats(const StoredTensor& tensor) {
  const DType dtype = *tensor.entry->compute_dtype();
  std::vector<float> values(tensor.bytes() / BytesOf(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(values.data(), tensor.data(), tensor.bytes());
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, tensor.data() + 2 * i, 2);
    if (dtype == DType::kF16) {
      values[i] = HalfToFloat(half);
    } else {
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      std::memcpy(&values[i], &bits, 4);
    }
  }
  return values;
}

std::string WeightPlan::Prefix(std::initializer_list<std::string_view> choices,
                               std::string_view probe) const {
  for (std::string_view choice : choices) {
    if (files_ != nullptr && files_->Find(fmt::format("{}{}", choice, probe))) {
      return std::string(choice);
    }
  }
  return std::string(*choices.begin());
}

bool WeightPlan::AddHead(Linear& target, const HeadNeed& need) {
  const auto add = [&](const std::string& name) {
    Add(target, {.parts = {{name, need.rows}}, .k = need.columns});
  };
  const auto stored = std::ranges::find_if(need.names, [this](const std::string& name) {
    return files_ != nullptr && files_->Find(name + ".weight").has_value();
  });
  const bool found = stored != need.names.end();
  if (need.tied) {
    if (found) notes_.push_back(UnusedHead(*files_, *stored, need.embedding));
    add(need.embedding);
    return true;
  }
  if (found || !need.base || files_ == nullptr) {
    add(found ? *stored : need.names.front());
    return true;
  }
  notes_.push_back(fmt::format(
      "{}: a base model without a vocabulary projection (`{}.weight`): it makes embeddings, and "
      "requests to generate text are refused",
      files_->folder(), need.names.front()));
  add(need.embedding);
  return false;
}

void WeightPlan::Add(Linear& target, LinearNeed need) {
  Task task;
  for (const LinearNeed::Part& part : need.parts) {
    std::vector<int64_t> shape = {part.n, need.k};
    if (need.transposed) std::swap(shape[0], shape[1]);
    task.needs.push_back({part.name + ".weight", std::move(shape), WeightKind::kMatrix});
  }
  if (need.bias) {
    for (const LinearNeed::Part& part : need.parts) {
      task.needs.push_back({part.name + ".bias", {part.n}, WeightKind::kBias});
    }
  }
  for (const WeightNeed& stored : task.needs) {
    task.held.push_back(HeldOf(need, need.parts[task.held.size() % need.parts.size()], stored));
  }
  target.over_ranks = need.row_parallel && rank_.size > 1 ? sum_ : nullptr;
  task.build = [need = std::move(need), rank = rank_](tensor::Device& device,
                                                      std::span<const StoredTensor> stored) {
    return BuildLinear(need, rank, device, stored);
  };
  task.use = [&target](const Shared& weight) {
    target.weight = MemberOf(weight, weight->matrix);
    target.bias = MemberOf(weight, weight->bias);
  };
  AddTask(std::move(task));
}

WeightPlan::Held WeightPlan::HeldOf(const LinearNeed& need, const LinearNeed::Part& part,
                                    const WeightNeed& stored) const {
  int64_t outputs = 0, first = part.n, end = 0;
  for (const OutputRun& run : OutputsOf(need, part, rank_)) {
    outputs += run.count;
    first = std::min<int64_t>(first, run.first);
    end = std::max<int64_t>(end, run.first + run.count);
  }
  if (stored.kind == WeightKind::kBias) return {outputs, 0, stored.elements()};
  Held held{outputs * InputsOf(need, rank_).count, 0, stored.elements()};
  if (!need.transposed) {
    held.first = first * need.k;
    held.span = (end - first) * need.k;
  }
  return held;
}

void WeightPlan::AddTask(Task task) {
  // Tensors that are not cut are whole on every rank.
  for (size_t i = task.held.size(); i < task.needs.size(); ++i) {
    const int64_t elements = task.needs[i].elements();
    task.held.push_back({elements, 0, elements});
  }
  task.key = KeyOf(task);
  tasks_.push_back(std::move(task));
}

// Tied weights are a table and a matrix of the same name. What is not cut is the same on every
// rank. Weights of no tensor have no key.
std::string WeightPlan::KeyOf(const Task& task) const {
  std::string key;
  bool cut = false;
  for (size_t i = 0; i < task.needs.size(); ++i) {
    const WeightNeed& need = task.needs[i];
    key += fmt::format("{}{}", need.kind == WeightKind::kTable ? "table " : " ", need.name);
    cut = cut || task.held[i].elements < need.elements();
  }
  return cut ? fmt::format("{}, rank {} of {}", key, rank_.rank, rank_.size) : key;
}

void WeightPlan::Keep(const LoadedWeights& here) {
  for (Task& task : tasks_) {
    const auto found = task.key.empty() ? here.end() : here.find(task.key);
    if (found != here.end()) task.kept = found->second;
  }
}

void WeightPlan::Add(Norm& target, const std::string& name, int size, NormKind kind, double epsilon,
                     bool affine) {
  target.kind = kind;
  target.epsilon = static_cast<float>(epsilon);
  Task task;
  if (affine) {
    task.needs.push_back({name + ".weight", {size}, WeightKind::kNormWeight});
    if (kind == NormKind::kLayer) task.needs.push_back({name + ".bias", {size}, WeightKind::kBias});
  }
  task.build = [size](tensor::Device& device,
                      std::span<const StoredTensor> stored) -> Result<LoadedWeight> {
    const std::vector<float> weight =
        stored.empty() ? std::vector<float>(static_cast<size_t>(size), 1.0f) : ToFloats(stored[0]);
    LoadedWeight built;
    MR_ASSIGN_OR_RETURN(built.vector, device.NewVector(weight));
    if (stored.size() < 2) return built;
    MR_ASSIGN_OR_RETURN(built.bias, device.NewVector(ToFloats(stored[1])));
    return built;
  };
  task.use = [&target](const Shared& weight) {
    target.weight = MemberOf(weight, weight->vector);
    target.bias = MemberOf(weight, weight->bias);
  };
  AddTask(std::move(task));
}

void WeightPlan::Add(Table& target, const std::string& name, int rows, int cols, int skip) {
  Task task;
  task.needs.push_back({name, {rows, cols}, WeightKind::kTable});
  task.build = [rows, cols, skip](tensor::Device& device,
                                  std::span<const StoredTensor> stored) -> Result<LoadedWeight> {
    const DType dtype = *stored[0].entry->compute_dtype();
    const size_t skipped = BytesOf(dtype) * static_cast<size_t>(skip) * static_cast<size_t>(cols);
    LoadedWeight built;
    built.file = stored[0].file;
    const void* data = AlignedData(stored[0], dtype, built.aligned_copy);
    MR_ASSIGN_OR_RETURN(built.table, device.NewTable({static_cast<const std::byte*>(data) + skipped,
                                                      dtype, rows - skip, cols}));
    return built;
  };
  task.use = [&target](const Shared& weight) { target.rows = MemberOf(weight, weight->table); };
  AddTask(std::move(task));
}

std::vector<WeightNeed> WeightPlan::Needs() const {
  std::vector<WeightNeed> needs;
  std::set<std::string> seen;  // tied weights are a table and a matrix of the same name
  for (const Task& task : tasks_) {
    for (const WeightNeed& need : task.needs) {
      if (seen.insert(need.name).second) needs.push_back(need);
    }
  }
  return needs;
}

Status WeightPlan::Resolve() {
  for (Task& task : tasks_) {
    task.stored.clear();
    for (const WeightNeed& need : task.needs) {
      std::optional<StoredTensor> stored = files_->Find(need.name);
      if (!stored) {
        return NotFound(fmt::format("{}: tensor `{}` {} is missing from the weight files{}",
                                    files_->folder(), need.name, ShapeText(need.shape),
                                    need.name == "lm_head.weight"
                                        ? "; if the model's projection is its embedding, set "
                                          "tie_word_embeddings of config.json to true"
                                        : ""));
      }
      if (stored->entry->shape != need.shape) {
        return InvalidArgument(fmt::format("{}: tensor `{}` has shape {}, config.json asks for {}",
                                           *stored->path, need.name,
                                           ShapeText(stored->entry->shape), ShapeText(need.shape)));
      }
      if (!stored->entry->compute_dtype()) {
        return Unimplemented(
            fmt::format("{}: tensor `{}` has dtype {}; F32, F16 and BF16 are supported",
                        *stored->path, need.name, stored->entry->dtype));
      }
      task.stored.push_back(*stored);
    }
  }
  return OkStatus();
}

int64_t WeightPlan::stored_bytes() const { return SumBytes(true); }
int64_t WeightPlan::bytes_to_read() const { return SumBytes(false); }

int64_t WeightPlan::SumBytes(bool with_kept) const {
  int64_t total = 0;
  std::set<const TensorEntry*> seen;
  for (const Task& task : tasks_) {
    if (task.kept && !with_kept) continue;
    for (size_t i = 0; i < task.stored.size(); ++i) {
      if (seen.insert(task.stored[i].entry).second) total += HeldBytes(task, i);
    }
  }
  return total;
}

int64_t WeightPlan::HeldBytes(const Task& task, size_t need) {
  return task.held[need].elements *
         static_cast<int64_t>(BytesOf(*task.stored[need].entry->compute_dtype()));
}

DType WeightPlan::dtype() const {
  for (const Task& task : tasks_) {
    for (size_t i = 0; i < task.stored.size(); ++i) {
      const WeightKind kind = task.needs[i].kind;
      if (kind == WeightKind::kMatrix || kind == WeightKind::kTable) {
        return *task.stored[i].entry->compute_dtype();
      }
    }
  }
  return DType::kF32;
}

void WeightPlan::ForEachRun(const Task& task,
                            const std::function<void(const StoredTensor&, size_t, size_t)>& visit) {
  for (size_t i = 0; i < task.stored.size(); ++i) {
    const StoredTensor& stored = task.stored[i];
    const size_t element = BytesOf(*stored.entry->compute_dtype());
    visit(stored, stored.entry->begin + static_cast<size_t>(task.held[i].first) * element,
          static_cast<size_t>(task.held[i].span) * element);
  }
}

std::vector<FileRun> WeightPlan::Runs() const {
  std::vector<FileRun> runs;
  for (const Task& task : tasks_) {
    if (task.kept) continue;
    ForEachRun(task, [&](const StoredTensor& stored, size_t begin, size_t bytes) {
      runs.push_back({*stored.path, begin, begin + bytes});
    });
  }
  return runs;
}

Result<LoadedWeights> WeightPlan::Load(tensor::Device& device,
                                       const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t total = bytes_to_read();
  int64_t done = 0, ahead = 0;
  size_t next = 0;  // first task that was not prefetched
  std::set<const TensorEntry*> counted;
  LoadedWeights all;
  for (Task& task : tasks_) {
    for (; next < tasks_.size() && ahead < done + kReadAheadBytes; ++next) {
      if (tasks_[next].kept) continue;
      ForEachRun(tasks_[next], [](const StoredTensor& stored, size_t begin, size_t bytes) {
        stored.file->Prefetch(begin, bytes);
      });
      for (size_t i = 0; i < tasks_[next].stored.size(); ++i) ahead += HeldBytes(tasks_[next], i);
    }
    std::shared_ptr<const LoadedWeight> weight = task.kept;
    if (!weight) {
      MR_ASSIGN_OR_RETURN(LoadedWeight built, task.build(device, task.stored));
      for (size_t i = 0; i < task.stored.size(); ++i) {
        built.bytes += HeldBytes(task, i);
        if (counted.insert(task.stored[i].entry).second) done += HeldBytes(task, i);
      }
      weight = std::make_shared<const LoadedWeight>(std::move(built));
      // Releases tables too: the pages in use are read again on demand, and most of them never.
      ForEachRun(task, [](const StoredTensor& stored, size_t begin, size_t bytes) {
        stored.file->Release(begin, bytes);
      });
      if (progress) progress(done, total);
    }
    task.use(weight);
    if (!task.key.empty()) all.emplace(task.key, std::move(weight));
  }
  return all;
}

}  // namespace millrace::model
