#include "model/architecture.h"

#include <fmt/format.h>

#include "base/log.h"

namespace millrace::model {

#define MILLRACE_ARCHITECTURE(name, base_name, model_type, make) \
  std::unique_ptr<Decoder> make(ConfigReader&);
#include "model/arch/list.inc"
#undef MILLRACE_ARCHITECTURE

std::span<const Architecture> Architectures() {
  static constexpr Architecture kArchitectures[] = {
#define MILLRACE_ARCHITECTURE(name, base_name, model_type, make) \
  {name, base_name, model_type, make},
#include "model/arch/list.inc"
#undef MILLRACE_ARCHITECTURE
  };
  return kArchitectures;
}

Result<std::unique_ptr<Decoder>> NewDecoder(const Json& config, const std::string& label) {
  ConfigReader reader(config, label);
  const std::vector<std::string> wanted = reader.Strings("architectures");
  const std::string model_type = reader.String("model_type", "");
  MR_RETURN_IF_ERROR(reader.status());
  std::string known;
  for (const Architecture& a : Architectures()) {
    const bool base = wanted.size() == 1 && wanted[0] == a.base_name;
    const bool match = wanted.empty() ? a.model_type == model_type
                                      : base || (wanted.size() == 1 && wanted[0] == a.name);
    if (match) {
      std::unique_ptr<Decoder> decoder = a.make(reader);
      if (base) decoder->SetBase();
      MR_RETURN_IF_ERROR(reader.status());
      return decoder;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", a.name);
  }
  const std::string name = wanted.empty() ? model_type : fmt::format("{}", fmt::join(wanted, ", "));
  return Unimplemented(fmt::format("{}: architecture \"{}\" is not known; known: {}", label,
                                   Printable(name, 100), known));
}

ModelSpec ReadCommon(ConfigReader& config, const CommonNames& names) {
  ModelSpec spec;
  spec.num_layers = config.Int(names.layers, 1, kLayersMax);
  spec.hidden_size = config.Int(names.hidden, 1, kHiddenSizeMax);
  spec.embedding_size = spec.hidden_size;
  spec.num_heads = config.Int(names.heads, 1, kHeadsMax);
  spec.num_kv_heads = spec.num_heads;
  spec.head_dim = spec.hidden_size % spec.num_heads == 0 ? spec.hidden_size / spec.num_heads : 0;
  if (names.grouped) {
    spec.num_kv_heads = config.Int("num_key_value_heads", 1, kHeadsMax, spec.num_heads);
    spec.head_dim = config.Int("head_dim", 1, kHeadDimMax, spec.head_dim);
  }
  if (spec.head_dim == 0) {
    config.Fail(fmt::format("{} {} is not a multiple of {} {}", names.hidden, spec.hidden_size,
                            names.heads, spec.num_heads));
  }
  if (spec.head_dim > kHeadDimMax) {
    config.Fail(fmt::format("heads of {} dimensions, the limit is {}", spec.head_dim, kHeadDimMax));
  }
  if (spec.num_heads % spec.num_kv_heads != 0) {
    config.Fail(fmt::format("{} {} is not a multiple of num_key_value_heads {}", names.heads,
                            spec.num_heads, spec.num_kv_heads));
  }
  if (spec.num_heads * spec.head_dim > kHiddenSizeMax) {
    config.Fail(fmt::format("{} heads of {} dimensions are beyond the limit of {}", spec.num_heads,
                            spec.head_dim, kHiddenSizeMax));
  }
  spec.intermediate_size = config.Int(
      names.intermediate, 1, kIntermediateSizeMax,
      names.intermediate_may_lack ? std::optional<int>(4 * spec.hidden_size) : std::nullopt);
  spec.vocab_size = config.Int("vocab_size", 1, kVocabSizeMax);
  spec.max_position = config.Int(names.positions, 1, kPositionsMax);
  return spec;
}

}  // namespace millrace::model
