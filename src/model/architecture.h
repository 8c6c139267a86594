// Architectures: how the shared layers form a model. Each is one file in arch/ and one line in
// arch/list.inc; README.md says how to add one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/layer_range.h"
#include "core/model_spec.h"
#include "model/config.h"
#include "model/layers.h"
#include "model/rope.h"
#include "model/sharding.h"
#include "model/weight_plan.h"

namespace millrace::model {

// Sizes that follow from the configuration alone.
struct Dims {
  ModelSpec spec;       // without dtype, weight_bytes and num_parameters, which loading sets
  int mlp_columns = 0;  // widest row between the matrices of the feed-forward part
  std::optional<RopeConfig> rope;  // unset: positions are learned
};

// A model of one architecture: built from a configuration, then asked to declare some layers, then
// run. Owned by Model; one thread.
class Decoder {
 public:
  virtual ~Decoder() = default;

  const Dims& dims() const { return dims_; }
  ModelSpec& mutable_spec() { return dims_.spec; }
  // The configuration names the base model, which may lack a vocabulary projection.
  void SetBase() { base_ = true; }

  // Adds the weights of `layers`, as stored in the files; the plan selects its rank's part. Layer 0
  // includes the embedding, the last layer the final norm and the head.
  virtual void Declare(LayerRange layers, WeightPlan& plan) = 0;

  // A pass goes from the rows `pass.at` of the step to `pass.hidden`, in place through Layer, and
  // out through Head.
  virtual void Embed(Pass& pass) = 0;
  virtual void Layer(int index, Pass& pass) = 0;
  // `rows`: gathered hidden rows, overwritten; `scratch`: same size; `logits`: [rows, vocab_size].
  virtual void Head(tensor::Device& device, tensor::Rows rows, tensor::Rows scratch,
                    tensor::Rows logits) = 0;
  // The first part of Head: returns what enters the vocabulary projection, [rows,
  // spec.embedding_size], in `rows` or `scratch`.
  virtual tensor::Rows HeadInput(tensor::Device& device, tensor::Rows rows,
                                 tensor::Rows scratch) = 0;

 protected:
  // Whether norm and head are declared: only by rank 0 of the last stage, which computes the
  // logits.
  bool HasHead(LayerRange layers, const WeightPlan& plan) const {
    return layers.end == dims_.spec.num_layers && plan.rank().rank == 0;
  }
  // This rank's part of each layer.
  int Heads(const WeightPlan& plan) const {
    return ShareOf(dims_.spec.num_heads, plan.rank()).size();
  }
  int KvHeads(const WeightPlan& plan) const {
    return ShareOf(dims_.spec.num_kv_heads, plan.rank()).size();
  }
  int MlpColumns(const WeightPlan& plan) const {
    return ShareOf(dims_.spec.intermediate_size, plan.rank()).size();
  }
  // A base model is also one whose tensors are named as it names them, without a prefix.
  bool IsBase(std::string_view prefix) const { return base_ || prefix.empty(); }
  Dims dims_;

 private:
  bool base_ = false;
};

// Reads the architecture's fields. The reader keeps the first error; the caller checks its status.
using MakeDecoder = std::unique_ptr<Decoder> (*)(ConfigReader& config);

struct Architecture {
  std::string_view name;        // config.json "architectures": "LlamaForCausalLM"
  std::string_view base_name;   // the same without a vocabulary projection: "LlamaModel"
  std::string_view model_type;  // config.json "model_type": "llama"
  MakeDecoder make;
};

std::span<const Architecture> Architectures();

// The decoder that `config` (of file `label`) describes. kUnimplemented for an unknown
// architecture, naming the known ones.
Result<std::unique_ptr<Decoder>> NewDecoder(const Json& config, const std::string& label);

// Fields that nearly every architecture has, under the given names; checks that they are
// consistent.
struct CommonNames {
  const char* layers = "num_hidden_layers";
  const char* hidden = "hidden_size";
  const char* heads = "num_attention_heads";
  const char* intermediate = "intermediate_size";
  bool intermediate_may_lack = false;  // if absent, 4 * hidden
  const char* positions = "max_position_embeddings";
  bool grouped =
      true;  // num_key_value_heads and head_dim may be given; otherwise both follow from heads
};
ModelSpec ReadCommon(ConfigReader& config, const CommonNames& names = {});

}  // namespace millrace::model
