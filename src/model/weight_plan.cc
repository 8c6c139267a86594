#include "model/weight_plan.h"

#include <fmt/format.h>

#include <cstring>
#include <set>

namespace millrace::model {
namespace {

// How far reading runs ahead of packing.
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

// A view of `tensor`, through `copy` when its place in the file is not aligned to its elements.
const void* AlignedData(const StoredTensor& tensor, DType dtype, std::vector<uint8_t>& copy) {
  if (reinterpret_cast<uintptr_t>(tensor.data()) % BytesOf(dtype) == 0) return tensor.data();
  copy.assign(tensor.data(), tensor.data() + tensor.bytes());
  return copy.data();
}

// The [n, k] pieces of one tensor, in the order they are stacked. GPT-NeoX keeps q, k and v of each
// head together; attention wants all q, then all k, then all v.
void AppendPieces(const LinearNeed& need, int n, DType dtype, const void* data,
                  std::vector<tensor::HostMatrix>& pieces) {
  if (need.interleaved_head_dim == 0) {
    pieces.push_back(need.transposed ? tensor::HostMatrix{data, dtype, need.k, n}
                                     : tensor::HostMatrix{data, dtype, n, need.k});
    return;
  }
  const int head_dim = need.interleaved_head_dim, heads = n / (3 * head_dim);
  const size_t row_bytes = static_cast<size_t>(need.k) * BytesOf(dtype);
  for (int which = 0; which < 3; ++which) {
    for (int head = 0; head < heads; ++head) {
      const size_t row = static_cast<size_t>(head * 3 + which) * static_cast<size_t>(head_dim);
      pieces.push_back(
          {static_cast<const uint8_t*>(data) + row * row_bytes, dtype, head_dim, need.k});
    }
  }
}

std::vector<float> Deinterleave(const std::vector<float>& in, int head_dim) {
  std::vector<float> out;
  out.reserve(in.size());
  const size_t d = static_cast<size_t>(head_dim), heads = in.size() / (3 * d);
  for (size_t which = 0; which < 3; ++which) {
    for (size_t head = 0; head < heads; ++head) {
      auto first = in.begin() + static_cast<ptrdiff_t>((head * 3 + which) * d);
      out.insert(out.end(), first, first + static_cast<ptrdiff_t>(d));
    }
  }
  return out;
}

Status BuildLinear(Linear& target, const LinearNeed& need, tensor::Device& device,
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
    AppendPieces(need, need.parts[i].n, dtype, AlignedData(stored[i], dtype, copies[i]), pieces);
  }
  MR_ASSIGN_OR_RETURN(target.weight, device.Pack({pieces, need.transposed, need.row_parallel}));
  if (!need.bias) return OkStatus();
  std::vector<float> bias;
  for (size_t i = need.parts.size(); i < stored.size(); ++i) {
    const std::vector<float> part = ToFloats(stored[i]);
    bias.insert(bias.end(), part.begin(), part.end());
  }
  if (need.interleaved_head_dim != 0) bias = Deinterleave(bias, need.interleaved_head_dim);
  MR_ASSIGN_OR_RETURN(target.bias, device.NewVector(bias));
  return OkStatus();
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
  task.build = [&target, need = std::move(need)](tensor::Device& device,
                                                 std::span<const StoredTensor> stored) {
    return BuildLinear(target, need, device, stored);
  };
  tasks_.push_back(std::move(task));
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
  task.build = [&target, size](tensor::Device& device,
                               std::span<const StoredTensor> stored) -> Status {
    const std::vector<float> weight =
        stored.empty() ? std::vector<float>(static_cast<size_t>(size), 1.0f) : ToFloats(stored[0]);
    MR_ASSIGN_OR_RETURN(target.weight, device.NewVector(weight));
    if (stored.size() < 2) return OkStatus();
    MR_ASSIGN_OR_RETURN(target.bias, device.NewVector(ToFloats(stored[1])));
    return OkStatus();
  };
  tasks_.push_back(std::move(task));
}

void WeightPlan::Add(Table& target, const std::string& name, int rows, int cols) {
  Task task;
  task.needs.push_back({name, {rows, cols}, WeightKind::kTable});
  task.build = [&target, rows, cols](tensor::Device&, std::span<const StoredTensor> stored) {
    const DType dtype = *stored[0].entry->compute_dtype();
    target.rows = {AlignedData(stored[0], dtype, target.aligned_copy), dtype, rows, cols};
    return OkStatus();
  };
  tasks_.push_back(std::move(task));
}

std::vector<WeightNeed> WeightPlan::Needs() const {
  std::vector<WeightNeed> needs;
  std::set<std::string> seen;  // tied weights are a table and a matrix of one name
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
        return NotFound(fmt::format("{}: tensor `{}` {} is missing from the weight files",
                                    files_->folder(), need.name, ShapeText(need.shape)));
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

int64_t WeightPlan::stored_bytes() const {
  int64_t total = 0;
  std::set<const TensorEntry*> seen;
  for (const Task& task : tasks_) {
    for (const StoredTensor& stored : task.stored) {
      if (seen.insert(stored.entry).second) total += static_cast<int64_t>(stored.bytes());
    }
  }
  return total;
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

void WeightPlan::Prefetch(size_t task) const {
  for (const StoredTensor& stored : tasks_[task].stored) {
    stored.file->Prefetch(stored.entry->begin, stored.bytes());
  }
}

Status WeightPlan::Load(tensor::Device& device,
                        const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t total = stored_bytes();
  int64_t done = 0, ahead = 0;
  size_t next = 0;  // first task not yet asked for
  std::set<const TensorEntry*> counted;
  for (Task& task : tasks_) {
    for (; next < tasks_.size() && ahead < done + kReadAheadBytes; ++next) {
      Prefetch(next);
      for (const StoredTensor& stored : tasks_[next].stored)
        ahead += static_cast<int64_t>(stored.bytes());
    }
    MR_RETURN_IF_ERROR(task.build(device, task.stored));
    for (const StoredTensor& stored : task.stored) {
      // Tables too: what is used in place comes back page by page, and most of it never.
      stored.file->Release(stored.entry->begin, stored.bytes());
      if (counted.insert(stored.entry).second) done += static_cast<int64_t>(stored.bytes());
    }
    if (progress) progress(done, total);
  }
  return OkStatus();
}

}  // namespace millrace::model
