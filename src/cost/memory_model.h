// Memory of weights, KV cache and activations of some layers of a model, from its shape alone. Pure
// functions; any thread.
#pragma once

#include <cstdint>

#include "core/model_spec.h"
#include "core/plan.h"

namespace millrace::cost {

// Weights by place, in parameters, without biases and norms, which are below 0.1 % of a layer.
struct ParameterCount {
  int64_t layer = 0;      // one layer
  int64_t embedding = 0;  // the first stage
  int64_t head = 0;       // the last stage; 0 if tied to the embedding on one stage
};

// If the spec states num_parameters, the count chooses what comes closest to it: head and embedding
// tied or separate, and a feed-forward with two matrices or three (gated). Otherwise it counts both
// tables, and three matrices unless the architecture is OPT, GPT or BLOOM.
ParameterCount CountParameters(const ModelSpec& spec);

// Weight bytes of layers [begin, end), with embedding and head on the stages that hold them, over
// `tensor_parallel` devices together.
int64_t StageWeightBytes(const ModelSpec& spec, LayerRange layers);

// Bytes of one token's activations between two stages.
int64_t ActivationBytesPerToken(const ModelSpec& spec);

// Working memory of a step: the widest activations of a layer, in f32 at worst.
int64_t WorkspaceBytes(const ModelSpec& spec, int64_t tokens);

// How many tokens' KV fits beside the weights of `layers` and the workspace of a step of
// `step_tokens`, using `usable` of `memory_bytes`. Zero if the weights alone do not fit.
int64_t KvCapacityTokens(const ModelSpec& spec, LayerRange layers, int64_t memory_bytes,
                         int64_t step_tokens, double usable = 0.9);

}  // namespace millrace::cost
