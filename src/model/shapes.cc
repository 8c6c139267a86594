#include "model/shapes.h"

#include <fmt/format.h>

#include "base/log.h"
#include "model/make_tokenizer.h"

namespace millrace::model {
namespace {

enum class Family { kLlama, kMistral, kQwen2, kQwen3, kOpt, kGpt2, kGptNeoX };

struct Shape {
  std::string_view name;
  Family family;
  int layers, hidden, heads, kv_heads, intermediate, vocab, positions;
  bool tied = false;
  double theta = 10000;
  int head_dim = 0;  // 0: hidden / heads
};

// llama-1b has the layers of Llama-3.2-1B and, for small files, a vocabulary of 32,000.
// gpt3-*: the shapes of Orca's table 1.
constexpr Shape kShapes[] = {
    {"llama-160m", Family::kLlama, 12, 768, 12, 12, 3072, 32000, 2048},
    {"llama-1b", Family::kLlama, 16, 2048, 32, 8, 8192, 32000, 8192, true, 500000},
    {"llama-1.1b", Family::kLlama, 22, 2048, 32, 4, 5632, 32000, 2048},
    {"llama-7b", Family::kLlama, 32, 4096, 32, 32, 11008, 32000, 4096},
    {"llama-13b", Family::kLlama, 40, 5120, 40, 40, 13824, 32000, 4096},
    {"llama-30b", Family::kLlama, 60, 6656, 52, 52, 17920, 32000, 2048},
    {"llama-65b", Family::kLlama, 80, 8192, 64, 64, 22016, 32000, 2048},
    {"llama-70b", Family::kLlama, 80, 8192, 64, 8, 28672, 32000, 4096},
    {"llama3-8b", Family::kLlama, 32, 4096, 32, 8, 14336, 128256, 8192, false, 500000},
    {"llama3-70b", Family::kLlama, 80, 8192, 64, 8, 28672, 128256, 8192, false, 500000},
    {"llama3-405b", Family::kLlama, 126, 16384, 128, 8, 53248, 128256, 131072, false, 500000},
    {"llama3.2-3b", Family::kLlama, 28, 3072, 24, 8, 8192, 128256, 131072, true, 500000},
    {"mistral-7b", Family::kMistral, 32, 4096, 32, 8, 14336, 32000, 32768},
    {"mistral-nemo-12b", Family::kMistral, 40, 5120, 32, 8, 14336, 131072, 131072, false, 1000000,
     128},
    {"mistral-small-24b", Family::kMistral, 40, 5120, 32, 8, 32768, 131072, 32768, false, 100000000,
     128},
    {"mistral-large-123b", Family::kMistral, 88, 12288, 96, 8, 28672, 32768, 131072, false,
     1000000},
    {"qwen2-0.5b", Family::kQwen2, 24, 896, 14, 2, 4864, 151936, 32768, true, 1000000},
    {"qwen2-1.5b", Family::kQwen2, 28, 1536, 12, 2, 8960, 151936, 32768, true, 1000000},
    {"qwen2-7b", Family::kQwen2, 28, 3584, 28, 4, 18944, 152064, 32768, false, 1000000},
    {"qwen2-72b", Family::kQwen2, 80, 8192, 64, 8, 29568, 152064, 32768, false, 1000000},
    {"qwen2.5-3b", Family::kQwen2, 36, 2048, 16, 2, 11008, 151936, 32768, true, 1000000},
    {"qwen2.5-14b", Family::kQwen2, 48, 5120, 40, 8, 13824, 152064, 32768, false, 1000000},
    {"qwen2.5-32b", Family::kQwen2, 64, 5120, 40, 8, 27648, 152064, 32768, false, 1000000},
    {"qwen3-0.6b", Family::kQwen3, 28, 1024, 16, 8, 3072, 151936, 40960, true, 1000000, 128},
    {"qwen3-1.7b", Family::kQwen3, 28, 2048, 16, 8, 6144, 151936, 40960, true, 1000000, 128},
    {"qwen3-4b", Family::kQwen3, 36, 2560, 32, 8, 9728, 151936, 40960, true, 1000000, 128},
    {"qwen3-8b", Family::kQwen3, 36, 4096, 32, 8, 12288, 151936, 40960, false, 1000000, 128},
    {"qwen3-14b", Family::kQwen3, 40, 5120, 40, 8, 17408, 151936, 40960, false, 1000000, 128},
    {"qwen3-32b", Family::kQwen3, 64, 5120, 64, 8, 25600, 151936, 40960, false, 1000000, 128},
    {"opt-125m", Family::kOpt, 12, 768, 12, 12, 3072, 50272, 2048, true},
    {"opt-350m", Family::kOpt, 24, 1024, 16, 16, 4096, 50272, 2048, true},
    {"opt-1.3b", Family::kOpt, 24, 2048, 32, 32, 8192, 50272, 2048, true},
    {"opt-2.7b", Family::kOpt, 32, 2560, 32, 32, 10240, 50272, 2048, true},
    {"opt-6.7b", Family::kOpt, 32, 4096, 32, 32, 16384, 50272, 2048, true},
    {"opt-13b", Family::kOpt, 40, 5120, 40, 40, 20480, 50272, 2048, true},
    {"opt-30b", Family::kOpt, 48, 7168, 56, 56, 28672, 50272, 2048, true},
    {"opt-66b", Family::kOpt, 64, 9216, 72, 72, 36864, 50272, 2048, true},
    {"opt-175b", Family::kOpt, 96, 12288, 96, 96, 49152, 50272, 2048, true},
    {"gpt2", Family::kGpt2, 12, 768, 12, 12, 3072, 50257, 1024, true},
    {"gpt2-medium", Family::kGpt2, 24, 1024, 16, 16, 4096, 50257, 1024, true},
    {"gpt2-large", Family::kGpt2, 36, 1280, 20, 20, 5120, 50257, 1024, true},
    {"gpt2-xl", Family::kGpt2, 48, 1600, 25, 25, 6400, 50257, 1024, true},
    {"gpt3-13b", Family::kGpt2, 40, 5120, 40, 40, 20480, 50257, 2048, true},
    {"gpt3-101b", Family::kGpt2, 80, 10240, 80, 80, 40960, 50257, 2048, true},
    {"gpt3-175b", Family::kGpt2, 96, 12288, 96, 96, 49152, 50257, 2048, true},
    {"gpt3-341b", Family::kGpt2, 120, 15360, 120, 120, 61440, 50257, 2048, true},
    {"pythia-160m", Family::kGptNeoX, 12, 768, 12, 12, 3072, 50304, 2048},
    {"pythia-1.4b", Family::kGptNeoX, 24, 2048, 16, 16, 8192, 50304, 2048},
    {"gpt-neox-20b", Family::kGptNeoX, 44, 6144, 64, 64, 24576, 50432, 2048},
};

void SetGated(Json& c, const Shape& s) {
  c["hidden_size"] = s.hidden;
  c["intermediate_size"] = s.intermediate;
  c["num_hidden_layers"] = s.layers;
  c["num_attention_heads"] = s.heads;
  c["num_key_value_heads"] = s.kv_heads;
  if (s.head_dim != 0) c["head_dim"] = s.head_dim;
  c["max_position_embeddings"] = s.positions;
  c["hidden_act"] = "silu";
  c["rms_norm_eps"] = s.family == Family::kLlama ? 1e-5 : 1e-6;
  c["rope_theta"] = s.theta;
}

void SetOpt(Json& c, const Shape& s) {
  const bool post_norm = s.name == "opt-350m";
  c["hidden_size"] = s.hidden;
  c["ffn_dim"] = s.intermediate;
  c["num_hidden_layers"] = s.layers;
  c["num_attention_heads"] = s.heads;
  c["max_position_embeddings"] = s.positions;
  c["word_embed_proj_dim"] = post_norm ? s.hidden / 2 : s.hidden;
  c["do_layer_norm_before"] = !post_norm;
  c["activation_function"] = "relu";
}

void SetGpt2(Json& c, const Shape& s) {
  c["n_embd"] = s.hidden;
  c["n_inner"] = s.intermediate;
  c["n_layer"] = s.layers;
  c["n_head"] = s.heads;
  c["n_positions"] = s.positions;
  c["activation_function"] = "gelu_new";
  c["layer_norm_epsilon"] = 1e-5;
}

void SetGptNeoX(Json& c, const Shape& s) {
  c["hidden_size"] = s.hidden;
  c["intermediate_size"] = s.intermediate;
  c["num_hidden_layers"] = s.layers;
  c["num_attention_heads"] = s.heads;
  c["max_position_embeddings"] = s.positions;
  c["hidden_act"] = s.name == "gpt-neox-20b" ? "gelu_fast" : "gelu";
  c["rotary_pct"] = 0.25;
  c["rotary_emb_base"] = s.theta;
  c["use_parallel_residual"] = true;
  c["layer_norm_eps"] = 1e-5;
}

Json ConfigOf(const Shape& s) {
  struct Names {
    const char *architecture, *model_type;
  };
  static constexpr Names kNames[] = {
      {"LlamaForCausalLM", "llama"},     {"MistralForCausalLM", "mistral"},
      {"Qwen2ForCausalLM", "qwen2"},     {"Qwen3ForCausalLM", "qwen3"},
      {"OPTForCausalLM", "opt"},         {"GPT2LMHeadModel", "gpt2"},
      {"GPTNeoXForCausalLM", "gpt_neox"}};
  const Names& names = kNames[static_cast<size_t>(s.family)];
  Json c = {{"architectures", {names.architecture}},
            {"model_type", names.model_type},
            {"vocab_size", s.vocab},
            {"bos_token_id", kMadeBos},
            {"eos_token_id", kMadeEos},
            {"pad_token_id", kMadePad},
            {"tie_word_embeddings", s.tied}};
  switch (s.family) {
    case Family::kOpt: SetOpt(c, s); break;
    case Family::kGpt2: SetGpt2(c, s); break;
    case Family::kGptNeoX: SetGptNeoX(c, s); break;
    default: SetGated(c, s);
  }
  if (s.name == "mistral-7b") c["sliding_window"] = 4096;
  return c;
}

Status Apply(const ShapeNumbers& n, Shape& s) {
  const bool grouped = s.family < Family::kOpt;
  if (!grouped && (n.kv_heads || n.head_dim)) {
    return InvalidArgument(
        fmt::format("{} has no grouped queries: kv heads and head dim follow from heads", s.name));
  }
  s.layers = n.layers.value_or(s.layers);
  s.intermediate = n.intermediate.value_or(n.hidden ? 4 * *n.hidden : s.intermediate);
  s.hidden = n.hidden.value_or(s.hidden);
  s.kv_heads = n.kv_heads.value_or(n.heads ? *n.heads : s.kv_heads);
  s.heads = n.heads.value_or(s.heads);
  s.head_dim = n.head_dim.value_or(s.head_dim);
  s.vocab = n.vocab.value_or(s.vocab);
  s.positions = n.positions.value_or(s.positions);
  return OkStatus();
}

}  // namespace

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const Shape& s : kShapes) names.emplace_back(s.name);
  return names;
}

Result<Json> ShapeConfig(std::string_view name, const ShapeNumbers& numbers) {
  for (Shape shape : kShapes) {
    if (shape.name != name) continue;
    MR_RETURN_IF_ERROR(Apply(numbers, shape));
    return ConfigOf(shape);
  }
  return NotFound(fmt::format("shape \"{}\" is not known; known: {}", Printable(name, 60),
                              fmt::join(ShapeNames(), ", ")));
}

}  // namespace millrace::model
