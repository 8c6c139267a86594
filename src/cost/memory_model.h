// Bytes: what weights, KV cache and activations of some layers of a model take, from its shape
// alone. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "core/model_spec.h"
#include "core/plan.h"

namespace millrace::cost {

// Weights by place, in parameters. Biases and norms are left out: below 0.1 % of a layer.
struct ParameterCount {
  int64_t layer = 0;      // one layer
  int64_t embedding = 0;  // the first stage
  int64_t head = 0;       // the last stage; 0 when it is the embedding itself (tied) on one stage
};

// Where the spec states num_parameters, whether head and embedding are one table, and whether the
// feed-forward has two matrices or three (gated), is what comes nearest to it; else both tables
// are counted, and three matrices unless the architecture is OPT's, GPT's or BLOOM's.
ParameterCount CountParameters(const ModelSpec& spec);

// Of layers [begin, end), with embedding and head where they belong, over `tensor_parallel` devices
// together.
int64_t StageWeightBytes(const ModelSpec& spec, LayerRange layers);

// What a token's hidden row weighs between two stages.
int64_t ActivationBytesPerToken(const ModelSpec& spec);

// Working memory of a step: the widest rows of a layer, in f32 at worst.
int64_t WorkspaceBytes(const ModelSpec& spec, int64_t tokens);

// Tokens whose KV fits beside the weights of `layers` and the workspace of a step of `step_tokens`,
// using `usable` of `memory_bytes`. Zero when the weights alone do not fit.
int64_t KvCapacityTokens(const ModelSpec& spec, LayerRange layers, int64_t memory_bytes,
                         int64_t step_tokens, double usable = 0.9);

}  // namespace millrace::cost
