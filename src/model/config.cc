#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "base/log.h"
#include "model/folder.h"

namespace millrace::model {
namespace {

std::string PathOf(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

constexpr int kTopKMax = std::numeric_limits<int>::max();

// A JSON value for a message, shortened.
std::string Brief(const Json& value) { return Printable(DumpJson(value), 60); }

}  // namespace

const Json* ConfigReader::Find(std::string_view name) const {
  auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::Fail(std::string_view why, StatusCode code) {
  if (status_.ok()) status_ = Status(code, fmt::format("{}: {}", label_, why));
}

int ConfigReader::Int(std::string_view name, int lo, int hi, std::optional<int> absent) {
  const Json* value = Find(name);
  if (value == nullptr) {
    if (!absent) Fail(fmt::format("{} is missing", name));
    return absent.value_or(lo);
  }
  // Some tools write 4096.0.
  const bool integral =
      value->is_number_integer() ||
      (value->is_number_float() && std::floor(value->get<double>()) == value->get<double>());
  const double number = value->is_number() ? value->get<double>() : 0;
  if (!integral || !(number >= lo && number <= hi)) {
    Fail(fmt::format("{} must be a whole number in [{}, {}], got {}", name, lo, hi, Brief(*value)));
    return absent.value_or(lo);
  }
  return static_cast<int>(number);
}

double ConfigReader::Number(std::string_view name, double lo, double hi,
                            std::optional<double> absent) {
  const Json* value = Find(name);
  if (value == nullptr) {
    if (!absent) Fail(fmt::format("{} is missing", name));
    return absent.value_or(lo);
  }
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= lo && number <= hi)) {
    Fail(fmt::format("{} must be a number in [{}, {}], got {}", name, lo, hi, Brief(*value)));
    return absent.value_or(lo);
  }
  return number;
}

bool ConfigReader::Bool(std::string_view name, bool absent) {
  const Json* value = Find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) {
    Fail(fmt::format("{} must be true or false, got {}", name, Brief(*value)));
    return absent;
  }
  return value->get<bool>();
}

std::string ConfigReader::String(std::string_view name, std::string_view absent) {
  const Json* value = Find(name);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) {
    Fail(fmt::format("{} must be a string, got {}", name, Brief(*value)));
    return std::string(absent);
  }
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::Strings(std::string_view name) {
  std::vector<std::string> strings;
  const Json* value = Find(name);
  if (value == nullptr) return strings;
  if (!value->is_array()) {
    Fail(fmt::format("{} must be a list of strings, got {}", name, Brief(*value)));
    return strings;
  }
  for (const Json& item : *value) {
    if (!item.is_string()) {
      Fail(fmt::format("{} must be a list of strings, got {}", name, Brief(*value)));
      return {};
    }
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

tensor::Activation ConfigReader::Activation(std::string_view name, std::string_view absent) {
  struct Named {
    std::string_view name;
    tensor::Activation function;
  };
  static constexpr Named kActivations[] = {
      {"relu", tensor::Activation::kRelu},
      {"gelu", tensor::Activation::kGelu},
      {"gelu_new", tensor::Activation::kGeluTanh},
      {"gelu_fast", tensor::Activation::kGeluTanh},
      {"gelu_pytorch_tanh", tensor::Activation::kGeluTanh},
      {"silu", tensor::Activation::kSilu},
      {"swish", tensor::Activation::kSilu},
  };
  const std::string wanted = String(name, absent);
  std::string known;
  for (const Named& a : kActivations) {
    if (a.name == wanted) return a.function;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", a.name);
  }
  Fail(fmt::format("{} \"{}\" is not known; known: {}", name, Printable(wanted, 60), known),
       StatusCode::kUnimplemented);
  return tensor::Activation::kRelu;
}

std::optional<ConfigReader> ConfigReader::Object(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  if (!value->is_object()) {
    Fail(fmt::format("{} must be an object, got {}", name, Brief(*value)));
    return {};
  }
  return ConfigReader(*value, fmt::format("{}: {}", label_, name));
}

Result<Json> ParseConfig(std::string_view text) {
  // ParseJson sets the depth limit and the error messages; the callback checks every key for
  // duplicates.
  MR_ASSIGN_OR_RETURN(Json parsed, ParseJson(text));
  if (!parsed.is_object()) return InvalidArgument("not a JSON object");
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const Json again = Json::parse(text, [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  });
  if (!twice.empty()) return InvalidArgument(fmt::format("key {} appears twice", Printable(twice)));
  return parsed;
}

Result<Json> ReadConfig(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(std::string text, ReadInFolder(folder, kConfigFile, kConfigBytesMax));
  const std::string path = PathOf(folder, kConfigFile);
  Result<Json> config = ParseConfig(text);
  if (!config.ok()) return config.status().WithContext(path);
  if (config->contains("auto_map")) {
    MR_LOG(info, "{}: auto_map is ignored, code in a model folder is never run", path);
  }
  if (const auto causal = config->find("is_causal");
      causal != config->end() && causal->is_boolean() && !causal->get<bool>()) {
    MR_LOG(warn,
           "{}: is_causal is false, but every token sees the ones before it only: embeddings are "
           "not those of the model's own code",
           path);
  }
  if (config->contains("quantization_config") && !(*config)["quantization_config"].is_null()) {
    return Unimplemented(path +
                         ": quantized weights (quantization_config) are not supported; use the "
                         "float32, float16 or bfloat16 model");
  }
  return config;
}

namespace {

// An id or a list of ids, each once.
Status ReadEnds(const Json& object, int vocab_size, const std::string& label,
                GenerationConfig& out) {
  auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return OkStatus();
  const Json list = found->is_array() ? *found : Json::array({*found});
  if (list.size() > kEosTokensMax) {
    return InvalidArgument(fmt::format("{}: eos_token_id has {} ids, the limit is {}", label,
                                       list.size(), kEosTokensMax));
  }
  for (const Json& id : list) {
    if (!id.is_number_integer()) {
      return InvalidArgument(fmt::format(
          "{}: eos_token_id must be a token id or a list of them, got {}", label, Brief(id)));
    }
    if (id.get<double>() < 0 || id.get<double>() >= vocab_size) {
      out.notes.push_back(
          fmt::format("{}: eos_token_id {} ends no answer: the model's tokens are [0, {})", label,
                      Brief(id), vocab_size));
      continue;
    }
    const auto token = id.get<TokenId>();
    if (std::ranges::find(out.eos, token) == out.eos.end()) out.eos.push_back(token);
  }
  return OkStatus();
}

// The ranges are those of requests, so that a request is never refused for a field that it does not
// have.
Status ReadDefaults(ConfigReader reader, GenerationConfig& out) {
  if (reader.Has("temperature")) out.temperature = reader.Number("temperature", 0, 100);
  if (reader.Has("top_p")) out.top_p = reader.Number("top_p", 0, 1);
  if (reader.Has("min_p")) out.min_p = reader.Number("min_p", 0, 1);
  if (reader.Has("repetition_penalty")) {
    out.repetition_penalty = reader.Number("repetition_penalty", 1e-3, 100);
  }
  if (reader.Has("top_k")) out.top_k = std::max(0, reader.Int("top_k", -1, kTopKMax));
  const bool samples = reader.Bool("do_sample", true);
  MR_RETURN_IF_ERROR(reader.status());
  if (out.top_p == 0.0) {
    out.top_p = kTopPLeast;
    out.notes.push_back(
        fmt::format("{}: top_p 0 leaves the likeliest token: requests without top_p are greedy",
                    reader.label()));
  }
  if (!samples && out.temperature.value_or(1) > 0) {
    out.notes.push_back(fmt::format(
        "{}: do_sample false is not a default of requests: those without a temperature sample at "
        "{:g}; for greedy answers send 0, or write \"temperature\": 0 into the file",
        reader.label(), out.temperature.value_or(1)));
  }
  return OkStatus();
}

}  // namespace

Result<GenerationConfig> ParseGenerationConfig(const Json* generation, const Json& config,
                                               int vocab_size, const std::string& label) {
  GenerationConfig out;
  if (generation != nullptr) {
    MR_RETURN_IF_ERROR(ReadEnds(*generation, vocab_size, label, out));
    MR_RETURN_IF_ERROR(ReadDefaults(ConfigReader(*generation, label), out));
  }
  if (!out.eos.empty()) return out;
  const std::string beside = (std::filesystem::path(label).parent_path() / kConfigFile).string();
  MR_RETURN_IF_ERROR(ReadEnds(config, vocab_size, beside, out));
  return out;
}

Result<GenerationConfig> ReadGenerationConfig(const std::string& folder, const Json& config,
                                              int vocab_size) {
  const std::string path = PathOf(folder, kGenerationFile);
  Result<std::string> text = ReadInFolder(folder, kGenerationFile, kConfigBytesMax);
  if (!text.ok()) {
    if (text.status().code() != StatusCode::kNotFound) return text.status();
    return ParseGenerationConfig(nullptr, config, vocab_size, PathOf(folder, kConfigFile));
  }
  Result<Json> generation = ParseConfig(*text);
  if (!generation.ok()) return generation.status().WithContext(path);
  return ParseGenerationConfig(&*generation, config, vocab_size, path);
}

}  // namespace millrace::model
