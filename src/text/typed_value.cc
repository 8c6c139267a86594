#include "text/typed_value.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "text/call_syntax.h"

namespace millrace::text {
namespace {

enum Type : unsigned {
  kString = 1,
  kInteger = 2,
  kNumber = 4,  // with kInteger: any number
  kBoolean = 8,
  kNull = 16,
  kArray = 32,
  kObject = 64,
  kEvery = 127
};

// Names of types: those of JSON schemas, and those that clients write in their place.
constexpr std::pair<std::string_view, unsigned> kTypeNames[] = {{"string", kString},
                                                                {"str", kString},
                                                                {"text", kString},
                                                                {"integer", kInteger},
                                                                {"int", kInteger},
                                                                {"long", kInteger},
                                                                {"number", kNumber | kInteger},
                                                                {"float", kNumber | kInteger},
                                                                {"double", kNumber | kInteger},
                                                                {"boolean", kBoolean},
                                                                {"bool", kBoolean},
                                                                {"null", kNull},
                                                                {"array", kArray},
                                                                {"list", kArray},
                                                                {"tuple", kArray},
                                                                {"object", kObject},
                                                                {"dict", kObject},
                                                                {"map", kObject}};

unsigned TypeNamed(const OrderedJson& name) {
  if (!name.is_string()) return kEvery;
  const auto* found =
      std::ranges::find(kTypeNames, std::string_view(name.get_ref<const std::string&>()),
                        &std::pair<std::string_view, unsigned>::first);
  return found == std::end(kTypeNames) ? kEvery : found->second;
}

unsigned TypeOfValue(const OrderedJson& value) {
  if (value.is_string()) return kString;
  if (value.is_number_float()) return kNumber | kInteger;
  if (value.is_number()) return kInteger;
  if (value.is_boolean()) return kBoolean;
  if (value.is_null()) return kNull;
  return value.is_array() ? kArray : kObject;
}

// What a schema allows: types, and texts that are strings whatever they look like.
struct AllowedValues {
  unsigned types = kEvery;
  std::vector<std::string> texts;
};

constexpr int kSchemasMax =
    256;  // that are visited for one value; bounds references that are cyclic

class SchemaReader {
 public:
  explicit SchemaReader(const OrderedJson& root) : root_(root) {}

  // The schema of a property; null: none is known.
  const OrderedJson* Property(const OrderedJson& schema, const std::string& name) {
    if (!schema.is_object() || ++visited_ > kSchemasMax) return nullptr;
    const auto properties = schema.find("properties");
    if (properties != schema.end() && properties->is_object()) {
      const auto found = properties->find(name);
      if (found != properties->end()) return &*found;
    }
    if (const OrderedJson* target = Referred(schema)) {
      if (const OrderedJson* found = Property(*target, name)) return found;
    }
    for (const char* several : {"allOf", "anyOf", "oneOf"}) {
      const auto members = schema.find(several);
      if (members == schema.end() || !members->is_array()) continue;
      for (const OrderedJson& member : *members) {
        if (const OrderedJson* found = Property(member, name)) return found;
      }
    }
    const auto others = schema.find("additionalProperties");
    return others != schema.end() && others->is_object() ? &*others : nullptr;
  }

  AllowedValues Allowed(const OrderedJson& schema) {
    AllowedValues allowed;
    if (!schema.is_object() || ++visited_ > kSchemasMax) return allowed;
    if (const auto type = schema.find("type"); type != schema.end()) {
      unsigned types = type->is_array() ? 0 : TypeNamed(*type);
      for (const OrderedJson& one : type->is_array() ? *type : OrderedJson::array()) {
        types |= TypeNamed(one);
      }
      Restrict(allowed, {types, {}});
    }
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
      Restrict(allowed, OneOfValues(*list));
    }
    if (const auto value = schema.find("const"); value != schema.end()) {
      Restrict(allowed, OneOfValues(OrderedJson::array({*value})));
    }
    if (const OrderedJson* target = Referred(schema)) Restrict(allowed, Allowed(*target));
    for (const char* several : {"anyOf", "oneOf"}) {
      const auto members = schema.find(several);
      if (members == schema.end() || !members->is_array() || members->empty()) continue;
      AllowedValues either{0, {}};
      for (const OrderedJson& member : *members) {
        const AllowedValues one = Allowed(member);
        either.types |= one.types;
        either.texts.insert(either.texts.end(), one.texts.begin(), one.texts.end());
      }
      Restrict(allowed, either);
    }
    const auto all = schema.find("allOf");
    if (all != schema.end() && all->is_array()) {
      for (const OrderedJson& member : *all) Restrict(allowed, Allowed(member));
    }
    const auto nullable = schema.find("nullable");
    if (nullable != schema.end() && *nullable == OrderedJson(true)) allowed.types |= kNull;
    return allowed;
  }

 private:
  static AllowedValues OneOfValues(const OrderedJson& values) {
    AllowedValues allowed{0, {}};
    for (const OrderedJson& value : values) {
      allowed.types |= TypeOfValue(value);
      if (value.is_string()) allowed.texts.push_back(value.get<std::string>());
    }
    return allowed;
  }

  // A schema that contradicts itself restricts nothing.
  static void Restrict(AllowedValues& allowed, const AllowedValues& by) {
    if ((allowed.types & by.types) != 0) allowed.types &= by.types;
    allowed.texts.insert(allowed.texts.end(), by.texts.begin(), by.texts.end());
  }

  const OrderedJson* Referred(const OrderedJson& schema) const {
    const auto reference = schema.find("$ref");
    if (reference == schema.end() || !reference->is_string()) return nullptr;
    const std::string& text = reference->get_ref<const std::string&>();
    if (text == "#") return &root_;
    if (!text.starts_with("#/")) return nullptr;
    try {
      const OrderedJson::json_pointer pointer(text.substr(1));
      return root_.contains(pointer) ? &root_[pointer] : nullptr;
    } catch (const OrderedJson::exception&) {
      return nullptr;
    }
  }

  const OrderedJson& root_;
  int visited_ = 0;
};

std::string_view WithoutBlanks(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// The digits of an integer: also of one that is written as 5.0.
std::string_view IntegerOf(std::string_view number) {
  const size_t point = number.find('.');
  if (point == std::string_view::npos) return number;
  const bool zeros = number.find_first_not_of('0', point + 1) == std::string_view::npos;
  return zeros ? number.substr(0, point) : number;
}

std::optional<std::string> NumberOf(std::string_view text, unsigned types) {
  if (!IsJsonNumber(text)) return std::nullopt;
  if ((types & kNumber) != 0) return CompactJson(text);  // nullopt: it is too large
  text = IntegerOf(text);
  if (text.find_first_of(".eE") != std::string_view::npos) return std::nullopt;
  return std::string(text);
}

std::optional<std::string> ContainerOf(std::string_view text, unsigned types) {
  const bool fits = (text.starts_with('[') && (types & kArray) != 0) ||
                    (text.starts_with('{') && (types & kObject) != 0);
  if (!fits) return std::nullopt;
  auto json = CompactJson(text);
  if (!json && types != kEvery) json = ParsePythonValue(text);
  const bool kept = json && json->front() == text.front();
  return kept ? json : std::nullopt;
}

}  // namespace

const OrderedJson* ArgumentsSchemaOf(const OrderedJson& tools, const std::string& function) {
  if (!tools.is_array()) return nullptr;
  for (const OrderedJson& tool : tools) {
    if (!tool.is_object()) continue;
    const auto inner = tool.find("function");
    const OrderedJson& one = inner != tool.end() ? *inner : tool;
    if (!one.is_object() || one.value("name", OrderedJson()) != OrderedJson(function)) continue;
    const auto parameters = one.find("parameters");
    return parameters != one.end() && parameters->is_object() ? &*parameters : nullptr;
  }
  return nullptr;
}

std::string TypedValue(const OrderedJson* arguments, const std::string& parameter,
                       std::string_view text) {
  AllowedValues allowed;
  if (arguments != nullptr) {
    const OrderedJson* schema = SchemaReader(*arguments).Property(*arguments, parameter);
    if (schema != nullptr) allowed = SchemaReader(*arguments).Allowed(*schema);
  }
  const std::string_view bare = WithoutBlanks(text);
  for (const std::string_view written : {text, bare}) {
    if (std::ranges::find(allowed.texts, written) != allowed.texts.end()) {
      return JsonString(written);
    }
  }
  const unsigned types = allowed.types;
  if ((types & kNull) != 0 && (bare == "null" || bare == "None")) return "null";
  if ((types & kBoolean) != 0) {
    if (bare == "true" || bare == "True") return "true";
    if (bare == "false" || bare == "False") return "false";
  }
  std::optional<std::string> json;
  if ((types & (kInteger | kNumber)) != 0) json = NumberOf(bare, types);
  if (!json) json = ContainerOf(bare, types);
  if (!json && types == kEvery && bare.starts_with('"')) json = CompactJson(bare);
  return json ? *std::move(json) : JsonString(text);
}

}  // namespace millrace::text
