// config.json and generation_config.json, read with named limits: a wrong number gives one clear
// error line and never an allocation. Nothing in a model folder is executed; `auto_map` is ignored
// with a log line. One thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "core/ids.h"
#include "tensor/device.h"

namespace millrace::model {

inline constexpr std::string_view kConfigFile = "config.json";
inline constexpr std::string_view kGenerationFile = "generation_config.json";
inline constexpr size_t kConfigBytesMax = 1 << 20;
inline constexpr int kLayersMax = 1024;
inline constexpr int kHiddenSizeMax = 1 << 17;
inline constexpr int kHeadsMax = 4096;
inline constexpr int kHeadDimMax = 1024;
inline constexpr int kIntermediateSizeMax = 1 << 20;
inline constexpr int kVocabSizeMax = 1 << 22;
inline constexpr int kPositionsMax = 1 << 24;

// Reads fields of one JSON object. The first error is kept and later reads return the lower bound
// or the default, so an architecture can read all its fields and check status() once. A null field
// counts as absent.
class ConfigReader {
 public:
  // `label` is the prefix of every message: "DIR/config.json". `object` outlives the reader.
  ConfigReader(const Json& object, std::string label) : object_(object), label_(std::move(label)) {}

  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  int Int(std::string_view name, int lo, int hi, std::optional<int> absent = {});
  double Number(std::string_view name, double lo, double hi, std::optional<double> absent = {});
  bool Bool(std::string_view name, bool absent);
  std::string String(std::string_view name, std::string_view absent);
  std::vector<std::string> Strings(std::string_view name);  // absent: empty
  // The activation function with that name, as Hugging Face spells it.
  tensor::Activation Activation(std::string_view name, std::string_view absent);
  // A nested object; nullopt when absent.
  std::optional<ConfigReader> Object(std::string_view name);

  // Sets the error "LABEL: why", unless there is one already.
  void Fail(std::string_view why, StatusCode code = StatusCode::kInvalidArgument);
  void Merge(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  const Status& status() const { return status_; }
  const std::string& label() const { return label_; }

 private:
  const Json* Find(std::string_view name) const;

  const Json& object_;
  std::string label_;
  Status status_;
};

// Parses an object; refuses duplicate keys.
Result<Json> ParseConfig(std::string_view text);

// Reads DIR/config.json as an object. Logs that auto_map is ignored; refuses quantized weights.
Result<Json> ReadConfig(const std::string& folder);

// Defaults for parameters that a request does not set, and the tokens that end a text.
struct GenerationConfig {
  std::vector<TokenId> eos;  // from generation_config.json, else config.json; may be empty
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;        // absent or 0: all tokens
  std::vector<std::string> notes;  // what the user should know of it, each a line for the log
};

inline constexpr size_t kEosTokensMax = 64;
// top_p 0 leaves the likeliest token, and so does this, which a request may have.
inline constexpr double kTopPLeast = 1e-9;

// `generation` may be null (no such file). End tokens that are not below `vocab_size` are left out,
// because the model cannot generate them.
Result<GenerationConfig> ParseGenerationConfig(const Json* generation, const Json& config,
                                               int vocab_size, const std::string& label);
// Reads DIR/generation_config.json, which may be absent.
Result<GenerationConfig> ReadGenerationConfig(const std::string& folder, const Json& config,
                                              int vocab_size);

}  // namespace millrace::model
