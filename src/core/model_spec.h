// ModelSpec: what the scheduler, cache, cost model and front end need to know about a model. How
// its layers compute is in model/. Pure data; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"

namespace millrace {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr size_t BytesOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
const char* DTypeName(DType dtype);  // "float32", "bfloat16", "float16"

struct ModelSpec {
  std::string architecture;  // "LlamaForCausalLM"
  int num_layers = 0;
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int intermediate_size = 0;
  int embedding_size = 0;  // columns of the token embedding and of what enters the LM head
  int vocab_size = 0;    // rows of the embedding; every token id from outside is checked against it
  int max_position = 0;  // context length of the model in tokens, after rope scaling
  std::optional<int> sliding_window;
  DType dtype = DType::kF32;  // weights and KV cache
  int64_t weight_bytes = 0;
  int64_t num_parameters = 0;
  bool generates = true;  // false: a base model without a vocabulary projection, for embeddings

  // K and V of one token over `layers` layers.
  int64_t KvBytesPerToken(int layers) const {
    return int64_t{2} * layers * num_kv_heads * head_dim * static_cast<int64_t>(BytesOf(dtype));
  }
  int64_t KvBytesPerToken() const { return KvBytesPerToken(num_layers); }
};

}  // namespace millrace
