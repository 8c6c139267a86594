// The text format of a profile: docs/formats/profile.md.
#include <fmt/format.h>

#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cost/profile.h"

namespace millrace::cost {
namespace {

constexpr const char* kFormat = "millrace-profile";
constexpr int kVersion = 1;
constexpr double kSecondsMax = 1e6;
constexpr int64_t kTokensMax = int64_t{1} << 31;
constexpr int64_t kCountMax = int64_t{1} << 62;
constexpr size_t kNameBytesMax = 1024;

Json ToJson(const RelativeErrors& e) {
  return {{"rows", e.rows}, {"mean", e.mean}, {"p50", e.p50}, {"p95", e.p95}, {"max", e.max}};
}

Json ToJson(const StepFit& fit) {
  const StepCoefficients& c = fit.model.coefficients();
  const StepKnots& k = fit.model.knots();
  return {{"fixed_s", c.fixed_s},
          {"prefill_squared_s", c.prefill_squared_s},
          {"decode_context_s", c.decode_context_s},
          {"token_knots", k.tokens},
          {"token_s", c.token_s},
          {"sequence_knots", k.sequences},
          {"sequence_s", c.sequence_s},
          {"relative_error", ToJson(fit.errors)}};
}

Json ToJson(const ProfileSample& s) {
  return Json::array({s.batch.prefill_tokens, s.batch.prefill_tokens_squared,
                      s.batch.prefill_sequences, s.batch.decode_sequences, s.batch.decode_context,
                      s.step_s, s.layers_s});
}

// Reads the keys of one object; errors name the file and the place.
class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  Status Error(std::string_view key, std::string_view rule) const {
    return InvalidArgument(fmt::format("{}: \"{}\" {}", place_, key, rule));
  }
  Result<Fields> Object(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end() || !it->is_object()) return Error(key, "must be an object");
    return Fields(*it, fmt::format("{}, {}", place_, key));
  }
  bool Has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  Status Text(const char* key, std::string& out) const {
    const auto it = object_.find(key);
    if (it == object_.end() || !it->is_string() ||
        it->get_ref<const std::string&>().size() > kNameBytesMax) {
      return Error(key, fmt::format("must be a text of at most {} bytes", kNameBytesMax));
    }
    out = it->get<std::string>();
    return {};
  }
  Status Number(const char* key, double lo, double hi, double& out) const {
    const auto it = object_.find(key);
    if (it == object_.end() || !InRange(*it, lo, hi)) {
      return Error(key, fmt::format("must be a number in [{:g}, {:g}]", lo, hi));
    }
    out = it->get<double>();
    return {};
  }
  Status Integer(const char* key, int64_t lo, int64_t hi, int64_t& out) const {
    const auto it = object_.find(key);
    if (it == object_.end() || !IsInteger(*it, lo, hi)) {
      return Error(key, fmt::format("must be an integer in [{}, {}]", lo, hi));
    }
    out = it->get<int64_t>();
    return {};
  }
  Status Int(const char* key, int hi, int& out) const {
    int64_t value = 0;
    MR_RETURN_IF_ERROR(Integer(key, 1, hi, value));
    out = static_cast<int>(value);
    return {};
  }
  Status Numbers(const char* key, size_t size_max, std::vector<double>& out) const {
    const auto it = object_.find(key);
    if (it == object_.end() || !it->is_array() || it->size() > size_max) {
      return Error(key, fmt::format("must be an array of at most {} numbers", size_max));
    }
    out.clear();
    for (const Json& value : *it) {
      if (!InRange(value, 0, kSecondsMax)) {
        return Error(key, fmt::format("must hold numbers in [0, {:g}]", kSecondsMax));
      }
      out.push_back(value.get<double>());
    }
    return {};
  }
  Result<const Json*> Array(const char* key, size_t size_max) const {
    const auto it = object_.find(key);
    if (it == object_.end() || !it->is_array() || it->size() > size_max) {
      return Error(key, fmt::format("must be an array of at most {}", size_max));
    }
    return &*it;
  }

  static bool InRange(const Json& value, double lo, double hi) {
    return value.is_number() && value.get<double>() >= lo && value.get<double>() <= hi;
  }
  static bool IsInteger(const Json& value, int64_t lo, int64_t hi) {
    // A number above 2^63 is unsigned and would wrap.
    if (!value.is_number_integer() || (value.is_number_unsigned() && value > uint64_t(INT64_MAX))) {
      return false;
    }
    return value.get<int64_t>() >= lo && value.get<int64_t>() <= hi;
  }

 private:
  const Json& object_;
  std::string place_;
};

Status ReadErrors(const Fields& fields, RelativeErrors& errors) {
  constexpr double kErrorMax = 1e12;
  int64_t rows = 0;
  MR_RETURN_IF_ERROR(fields.Integer("rows", 0, kFitRowsMax, rows));
  errors.rows = static_cast<size_t>(rows);
  MR_RETURN_IF_ERROR(fields.Number("mean", 0, kErrorMax, errors.mean));
  MR_RETURN_IF_ERROR(fields.Number("p50", 0, kErrorMax, errors.p50));
  MR_RETURN_IF_ERROR(fields.Number("p95", 0, kErrorMax, errors.p95));
  return fields.Number("max", 0, kErrorMax, errors.max);
}

Status ReadFit(const Fields& parent, const char* key, StepFit& fit) {
  MR_ASSIGN_OR_RETURN(const Fields fields, parent.Object(key));
  StepKnots knots;
  StepCoefficients c;
  MR_RETURN_IF_ERROR(fields.Number("fixed_s", 0, kSecondsMax, c.fixed_s));
  MR_RETURN_IF_ERROR(fields.Number("prefill_squared_s", 0, kSecondsMax, c.prefill_squared_s));
  MR_RETURN_IF_ERROR(fields.Number("decode_context_s", 0, kSecondsMax, c.decode_context_s));
  MR_RETURN_IF_ERROR(fields.Numbers("token_knots", StepKnots::kKnotsMax, knots.tokens));
  MR_RETURN_IF_ERROR(fields.Numbers("token_s", StepKnots::kKnotsMax, c.token_s));
  MR_RETURN_IF_ERROR(fields.Numbers("sequence_knots", StepKnots::kKnotsMax, knots.sequences));
  MR_RETURN_IF_ERROR(fields.Numbers("sequence_s", StepKnots::kKnotsMax, c.sequence_s));
  auto model = StepModel::Create(std::move(knots), std::move(c));
  if (!model.ok()) return fields.Error(key, model.status().message());
  fit.model = std::move(*model);
  MR_ASSIGN_OR_RETURN(const Fields errors, fields.Object("relative_error"));
  return ReadErrors(errors, fit.errors);
}

Status ReadSamples(const Fields& fields, std::vector<ProfileSample>& samples) {
  MR_ASSIGN_OR_RETURN(const Json* rows, fields.Array("samples", Profile::kSamplesMax));
  for (const Json& row : *rows) {
    bool good = row.is_array() && row.size() == 7;
    for (size_t i = 0; good && i < 5; ++i) {
      good = Fields::IsInteger(row[i], 0, i == 1 || i == 4 ? kCountMax : kTokensMax - 1);
    }
    for (size_t i = 5; good && i < 7; ++i) good = Fields::InRange(row[i], 0, kSecondsMax);
    if (!good) {
      return fields.Error("samples", fmt::format("row {}: five counts and two times in seconds",
                                                 samples.size() + 1));
    }
    samples.push_back({{.prefill_tokens = row[0].get<int64_t>(),
                        .prefill_tokens_squared = row[1].get<int64_t>(),
                        .prefill_sequences = row[2].get<int32_t>(),
                        .decode_sequences = row[3].get<int32_t>(),
                        .decode_context = row[4].get<int64_t>()},
                       row[5].get<double>(),
                       row[6].get<double>()});
  }
  return {};
}

Status ReadLinks(const Fields& fields, Profile& profile) {
  MR_RETURN_IF_ERROR(fields.Number("memory_copy_bytes_per_s", 0, kBytesPerSecondMax,
                                   profile.memory_copy_bytes_per_s));
  if (fields.Has("hand_over_bytes_per_s")) {
    MR_RETURN_IF_ERROR(fields.Number("hand_over_bytes_per_s", 1, kBytesPerSecondMax,
                                     profile.hand_over_bytes_per_s.emplace()));
  }
  if (!fields.Has("loopback")) return {};
  MR_ASSIGN_OR_RETURN(const Fields loopback, fields.Object("loopback"));
  LinkFit fit;
  MR_RETURN_IF_ERROR(loopback.Number("latency_s", 0, kSecondsMax, fit.link.latency_s));
  MR_RETURN_IF_ERROR(loopback.Number("bytes_per_s", 1, kBytesPerSecondMax, fit.link.bytes_per_s));
  MR_ASSIGN_OR_RETURN(const Fields errors, loopback.Object("relative_error"));
  MR_RETURN_IF_ERROR(ReadErrors(errors, fit.errors));
  profile.loopback = fit;
  return {};
}

Status ReadServing(const Fields& fields, Profile& profile) {
  if (fields.Has("front_end")) {
    MR_ASSIGN_OR_RETURN(const Fields front_end, fields.Object("front_end"));
    FrontEnd times;
    MR_RETURN_IF_ERROR(front_end.Number("request_s", 0, kSecondsMax, times.request_s));
    MR_RETURN_IF_ERROR(front_end.Number("step_s", 0, kSecondsMax, times.step_s));
    // Older profiles have neither.
    for (const auto& [key, seconds] :
         {std::pair{"sequence_s", &times.sequence_s}, std::pair{"arrival_s", &times.arrival_s}}) {
      if (front_end.Has(key)) {
        MR_RETURN_IF_ERROR(front_end.Number(key, 0, kSecondsMax, *seconds));
      }
    }
    profile.front_end = times;
  }
  if (!fields.Has("pace")) return {};
  MR_ASSIGN_OR_RETURN(const Json* rows, fields.Array("pace", Pace::kStretchesMax));
  std::vector<PaceStretch> stretches;
  for (const Json& row : *rows) {
    if (!row.is_array() || row.size() != 3 || !Fields::InRange(row[0], 0, kTokensMax) ||
        !Fields::InRange(row[1], 0, kSecondsMax) || !Fields::InRange(row[2], 0, kSecondsMax)) {
      return fields.Error(
          "pace", fmt::format("row {}: tokens and two times in seconds", stretches.size() + 1));
    }
    stretches.push_back({row[0].get<int64_t>(), row[1].get<double>(), row[2].get<double>()});
  }
  auto pace = Pace::Create(std::move(stretches));
  if (!pace.ok()) return fields.Error("pace", pace.status().message());
  profile.pace = std::move(*pace);
  return {};
}

Status Read(const Fields& top, Profile& profile) {
  std::string format;
  int64_t version = 0;
  MR_RETURN_IF_ERROR(top.Text("format", format));
  if (format != kFormat) return top.Error("format", fmt::format("must be \"{}\"", kFormat));
  MR_RETURN_IF_ERROR(top.Integer("version", kVersion, kVersion, version));
  MR_ASSIGN_OR_RETURN(const Fields model, top.Object("model"));
  MR_RETURN_IF_ERROR(model.Text("name", profile.model));
  MR_RETURN_IF_ERROR(model.Text("architecture", profile.architecture));
  MR_RETURN_IF_ERROR(model.Text("dtype", profile.dtype));
  MR_RETURN_IF_ERROR(model.Int("num_layers", Profile::kLayersMax, profile.num_layers));
  MR_ASSIGN_OR_RETURN(const Fields machine, top.Object("machine"));
  MR_RETURN_IF_ERROR(machine.Text("device", profile.device));
  if (machine.Has("numeric_class")) {
    MR_RETURN_IF_ERROR(machine.Text("numeric_class", profile.numeric_class));
  }
  MR_RETURN_IF_ERROR(machine.Int("threads", Profile::kThreadsMax, profile.threads));
  MR_RETURN_IF_ERROR(ReadFit(top, "step", profile.step));
  MR_RETURN_IF_ERROR(ReadFit(top, "layers", profile.layers));
  MR_RETURN_IF_ERROR(top.Integer("saturation_tokens", 1, kTokensMax, profile.saturation_tokens));
  MR_RETURN_IF_ERROR(ReadLinks(top, profile));
  MR_RETURN_IF_ERROR(ReadServing(top, profile));
  return ReadSamples(top, profile.samples);
}

Json ToJson(const Profile& profile) {
  Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"model",
       {{"name", profile.model},
        {"architecture", profile.architecture},
        {"dtype", profile.dtype},
        {"num_layers", profile.num_layers}}},
      {"machine", {{"device", profile.device}, {"threads", profile.threads}}},
      {"step", ToJson(profile.step)},
      {"layers", ToJson(profile.layers)},
      {"saturation_tokens", profile.saturation_tokens},
      {"memory_copy_bytes_per_s", profile.memory_copy_bytes_per_s},
  };
  if (!profile.numeric_class.empty()) json["machine"]["numeric_class"] = profile.numeric_class;
  if (profile.loopback) {
    json["loopback"] = {{"latency_s", profile.loopback->link.latency_s},
                        {"bytes_per_s", profile.loopback->link.bytes_per_s},
                        {"relative_error", ToJson(profile.loopback->errors)}};
  }
  if (profile.hand_over_bytes_per_s) {
    json["hand_over_bytes_per_s"] = *profile.hand_over_bytes_per_s;
  }
  if (profile.front_end) {
    json["front_end"] = {{"request_s", profile.front_end->request_s},
                         {"step_s", profile.front_end->step_s},
                         {"sequence_s", profile.front_end->sequence_s},
                         {"arrival_s", profile.front_end->arrival_s}};
  }
  if (profile.pace) {
    json["pace"] = Json::array();
    for (const PaceStretch& s : profile.pace->stretches()) {
      json["pace"].push_back(Json::array({s.tokens, s.typical_s, s.took_s}));
    }
  }
  json["samples"] = Json::array();
  for (const ProfileSample& sample : profile.samples) json["samples"].push_back(ToJson(sample));
  return json;
}

}  // namespace

std::string FormatProfile(const Profile& profile) {
  return ToJson(profile).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string FormatProfileLine(Profile profile) {
  profile.samples.clear();
  profile.pace.reset();
  return ToJson(profile).dump(-1, ' ', true, Json::error_handler_t::replace);
}

Result<Profile> ParseProfile(std::string_view text, std::string_view file) {
  const std::string name = Printable(file);
  if (text.size() > Profile::kBytesMax) {
    return InvalidArgument(
        fmt::format("{}: {} bytes, the limit is {}", name, text.size(), Profile::kBytesMax));
  }
  auto json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(name);
  if (!json->is_object()) return InvalidArgument(name + ": must be an object");
  Profile profile;
  MR_RETURN_IF_ERROR(Read(Fields(*json, name), profile));
  return profile;
}

Result<Profile> LoadProfile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, Profile::kBytesMax));
  return ParseProfile(text, path);
}

}  // namespace millrace::cost
