// WeightPlan: the tensors of a model and the use of each. An architecture declares its weights
// once; loading, the memory check, the parameter count and make-model all read the same
// declaration. One thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/layers.h"
#include "model/loaded_weight.h"
#include "model/weight_files.h"
#include "model/weight_pieces.h"
#include "tensor/device.h"

namespace millrace::model {

enum class WeightKind { kMatrix, kTable, kBias, kNormWeight };

struct WeightNeed {
  std::string name;  // as in the file
  std::vector<int64_t> shape;
  WeightKind kind = WeightKind::kMatrix;

  int64_t elements() const;
};

// Names are without ".weight".
struct HeadNeed {
  bool tied = false;  // config.json: tie_word_embeddings
  bool base = false;  // the folder may hold the base model alone
  std::string embedding;
  std::vector<std::string> names;  // of a projection of its own, the usual one first
  int rows = 0, columns = 0;
};

// Bytes [begin, end) of a file.
struct FileRun {
  std::string path;
  uint64_t begin = 0, end = 0;
};

class WeightPlan {
 public:
  // With `files`, names are looked up (Prefix); without, the first choice is taken (make-model).
  // Loads the part of `rank`; with more than one rank, row-parallel products end in `sum`.
  explicit WeightPlan(const WeightFiles* files, TensorRank rank = {}, RankSum* sum = nullptr)
      : files_(files), rank_(rank), sum_(sum) {}

  TensorRank rank() const { return rank_; }

  // The first of `choices` for which the files contain choice + probe; else the first choice.
  std::string Prefix(std::initializer_list<std::string_view> choices, std::string_view probe) const;

  // The targets must not move until Load has returned.
  void Add(Linear& target, LinearNeed need);
  // Weight and bias (LayerNorm), or weight (RMS). Without `affine` the weight is one and there is
  // no bias.
  void Add(Norm& target, const std::string& name, int size, NormKind kind, double epsilon,
           bool affine = true);
  // The table is without the first `skip` of the tensor's `rows`.
  void Add(Table& target, const std::string& name, int rows, int cols, int skip = 0);

  // The vocabulary projection: the embedding, if they are tied, else a tensor of its own. Notes
  // what else the files hold. Returns false if a base model (`need.base`) has none; it gets the
  // embedding, which generates nothing of sense.
  bool AddHead(Linear& target, const HeadNeed& need);

  // What the user should know of the files, each a line for the log.
  const std::vector<std::string>& notes() const { return notes_; }

  // Takes the weights that are here already: they are not read. After the last Add.
  void Keep(const LoadedWeights& here);

  // Every tensor once, in the order of loading.
  std::vector<WeightNeed> Needs() const;

  // Finds every tensor and checks dtype and shape, before any byte of weights is read.
  Status Resolve();
  int64_t stored_bytes() const;   // of the rank's share of Needs(), after Resolve
  int64_t bytes_to_read() const;  // the part of them that is not kept
  DType dtype() const;            // of the first table or matrix, after Resolve

  // The bytes that Load reads, in its order; after Resolve.
  std::vector<FileRun> Runs() const;

  // Packs tensor by tensor, in the order of the layers, reading ahead and releasing pages. Returns
  // all weights, those that were kept too. `progress` counts what is read.
  Result<LoadedWeights> Load(tensor::Device& device,
                             const std::function<void(int64_t, int64_t)>& progress);

 private:
  // The elements of a tensor that this rank loads, and the range of the file that contains them.
  struct Held {
    int64_t elements = 0, first = 0, span = 0;
  };
  struct Task {
    std::vector<WeightNeed> needs;
    std::vector<Held> held;  // by need
    std::vector<StoredTensor> stored;
    std::function<Result<LoadedWeight>(tensor::Device&, std::span<const StoredTensor>)> build;
    std::function<void(const std::shared_ptr<const LoadedWeight>&)> use;  // sets the target
    std::string key;                                                      // in LoadedWeights
    std::shared_ptr<const LoadedWeight> kept;                             // null: it must be read
  };
  Held HeldOf(const LinearNeed& need, const LinearNeed::Part& part, const WeightNeed& stored) const;
  void AddTask(Task task);
  std::string KeyOf(const Task& task) const;
  static int64_t HeldBytes(const Task& task, size_t need);
  int64_t SumBytes(bool with_kept) const;
  static void ForEachRun(
      const Task& task,
      const std::function<void(const StoredTensor& stored, size_t begin, size_t bytes)>& visit);

  const WeightFiles* const files_;
  const TensorRank rank_;
  RankSum* const sum_;
  std::vector<Task> tasks_;
  std::vector<std::string> notes_;
};

// The elements of a stored F32, F16 or BF16 tensor as f32, whatever its alignment.
std::vector<float> ToFloats(const StoredTensor& tensor);

}  // namespace millrace::model
