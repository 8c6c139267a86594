// What the output must match: response_format (OpenAI), structured_outputs and guided_* (vLLM),
// grammar (llama.cpp), ebnf (SGLang).
#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "base/log.h"
#include "core/output_grammar.h"
#include "serve/http/limits.h"
#include "serve/request/parse_common.h"
#include "text/tool_grammar.h"

namespace millrace::serve {
namespace {

// How it is constrained beside the schema.
struct WhiteSpace {
  bool none = false;
  std::string pattern = text::kJsonWhiteSpace;
};

void Constrain(const WhiteSpace& space, OrderedJson& schema) {
  OrderedJson& options = schema["x-guidance"];
  if (options.is_null()) options = OrderedJson::object();
  if (!options.is_object()) return;  // refused when it is compiled
  options.erase("lenient");          // would ignore keywords
  if (space.none) {
    options["whitespace_flexible"] = false;
  } else if (!options.contains("whitespace_flexible") && !options.contains("whitespace_pattern")) {
    options["whitespace_pattern"] = space.pattern;
  }
}

class ConstraintReader {
 public:
  ConstraintReader(FieldReader& reader, const OrderedFields& fields, GenerationOptions& options)
      : reader_(reader), fields_(fields), options_(options) {}

  void Read() {
    ReadResponseFormat();
    ReadStructuredOutputs();
    ReadGuided();
    if (reader_.failed() || options_.params.grammar.empty() || !options_.params.ignore_eos) return;
    reader_.Fail("ignore_eos", fmt::format("ignore_eos does not go with {}: an answer that matches "
                                           "ends with the end-of-sequence token",
                                           options_.constraint_field));
  }

 private:
  // `path`: where the value is in the body, so that a schema's keys keep the client's order.
  using Path = std::vector<std::string>;

  void ReadResponseFormat();
  void ReadJsonObject(const Json& format);
  void ReadJsonSchema(const Json& format);
  void ReadStructuredOutputs();
  void ReadGuided();

  void Set(const std::string& field, GrammarKind kind, std::string_view text);
  void SetSchema(const Path& path, const Json& schema, const WhiteSpace& space);
  void SetSchema(const std::string& field, OrderedJson schema, const WhiteSpace& space);
  void SetAnyObject(const std::string& field);
  void SetText(const std::string& field, GrammarKind kind, const Json& text);
  void SetChoice(const std::string& field, const Json& choices);
  void SetTags(const Path& path, const Json& tags);
  OrderedJson Ordered(const Path& path) const;

  FieldReader& reader_;
  const OrderedFields& fields_;
  GenerationOptions& options_;
};

std::string Joined(const std::vector<std::string>& path) {
  return fmt::format("{}", fmt::join(path, "."));
}

OrderedJson ConstraintReader::Ordered(const Path& path) const {
  OrderedJson value = fields_({path.front()});
  for (const std::string& key : path) value = OrderedJson(std::move(value[key]));
  return value;
}

void ConstraintReader::Set(const std::string& field, GrammarKind kind, std::string_view text) {
  if (!options_.params.grammar.empty()) {
    return reader_.Fail(field, fmt::format("{} and {} both constrain the output; send one of them",
                                           options_.constraint_field, field));
  }
  options_.params.grammar = GrammarOf(kind, text);
  options_.constraint_field = field;
  const Status sound = CheckGrammar(options_.params.grammar);
  if (!sound.ok()) reader_.Fail(field, fmt::format("{}: {}", field, sound.message()));
}

void ConstraintReader::SetSchema(const Path& path, const Json& schema, const WhiteSpace& space) {
  const std::string field = Joined(path);
  OrderedJson ordered;
  if (schema.is_string()) {  // vLLM also takes the schema as text
    const auto& text = schema.get_ref<const std::string&>();
    const Result<Json> parsed = ParseJson(text);
    if (!parsed.ok()) {
      return reader_.Fail(field,
                          fmt::format("{} is not JSON: {}", field, parsed.status().message()));
    }
    if (!KeysWithinLimit(*parsed)) return RefuseKeys(reader_, field);
    ordered = OrderedJson::parse(text);
  } else {
    if (!KeysWithinLimit(schema)) return RefuseKeys(reader_, field);
    ordered = Ordered(path);
  }
  if (!ordered.is_object() && !ordered.is_boolean()) {
    return reader_.Fail(field,
                        fmt::format("{} must be a JSON schema, got {}", field, Describe(schema)));
  }
  SetSchema(field, std::move(ordered), space);
}

void ConstraintReader::SetSchema(const std::string& field, OrderedJson schema,
                                 const WhiteSpace& space) {
  if (schema.is_boolean()) {
    // The same as an object, which takes the white space.
    schema =
        schema.get<bool>() ? OrderedJson::object() : OrderedJson{{"not", OrderedJson::object()}};
  }
  Constrain(space, schema);
  Set(field, GrammarKind::kJsonSchema, schema.dump());
}

void ConstraintReader::SetAnyObject(const std::string& field) {
  SetSchema(field, {{"type", "object"}}, {});
}

void ConstraintReader::SetText(const std::string& field, GrammarKind kind, const Json& text) {
  if (!text.is_string()) {
    return reader_.Fail(field, fmt::format("{} must be a string, got {}", field, Describe(text)));
  }
  Set(field, kind, text.get_ref<const std::string&>());
}

void ConstraintReader::SetChoice(const std::string& field, const Json& choices) {
  const bool strings =
      choices.is_array() && !choices.empty() &&
      std::ranges::all_of(choices, [](const Json& choice) { return choice.is_string(); });
  if (!strings) {
    return reader_.Fail(
        field, fmt::format("{} must be a list of strings, got {}", field, Describe(choices)));
  }
  Set(field, GrammarKind::kChoice, choices.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void ConstraintReader::SetTags(const Path& path, const Json& tags) {
  const std::string field = Joined(path);
  OrderedJson ordered;
  if (tags.is_string()) {
    const Result<Json> parsed = ParseJson(tags.get_ref<const std::string&>());
    if (!parsed.ok() || !KeysWithinLimit(*parsed)) {
      return reader_.Fail(field, fmt::format("{} must be JSON of structural tags", field));
    }
    ordered = OrderedJson::parse(tags.get_ref<const std::string&>());
  } else {
    if (!KeysWithinLimit(tags)) return RefuseKeys(reader_, field);
    ordered = Ordered(path);
  }
  if (!ordered.is_object() || !ordered.contains("structures") || !ordered.contains("triggers")) {
    return reader_.Fail(field, fmt::format("{} must be an object with \"structures\" and "
                                           "\"triggers\", got {}; \"format\" is not supported",
                                           field, Describe(tags)));
  }
  Set(field, GrammarKind::kTags, ordered.dump());
}

void ConstraintReader::ReadResponseFormat() {
  reader_.Object("response_format", [this](const Json& format) {
    const std::string field = "response_format";
    const auto type = format.find("type");
    if (type == format.end() || !type->is_string()) {
      return reader_.Fail(field, fmt::format("response_format.type must be a string, got {}",
                                             Describe(type == format.end() ? Json() : *type)));
    }
    if (*type == Json("text")) return reader_.IgnoreUnknown(field, format, {"type"});
    if (*type == Json("json_object")) return ReadJsonObject(format);
    if (*type == Json("json_schema")) return ReadJsonSchema(format);
    if (*type == Json("structural_tag")) {
      reader_.IgnoreUnknown(field, format, {"type", "structures", "triggers", "format"});
      const Json structures = format.value("structures", Json());
      for (size_t i = 0; structures.is_array() && i < structures.size(); ++i) {
        reader_.IgnoreUnknown(fmt::format("{}.structures[{}]", field, i), structures[i],
                              {"begin", "schema", "end"});
      }
      return SetTags({field}, format);
    }
    reader_.Fail(field, fmt::format("response_format.type must be text, json_object, json_schema "
                                    "or structural_tag, got {}",
                                    Describe(*type)));
  });
}

// llama.cpp and others take a schema here too.
void ConstraintReader::ReadJsonObject(const Json& format) {
  reader_.IgnoreUnknown("response_format", format, {"type", "schema"});
  const Json schema = format.value("schema", Json());
  if (schema.is_null()) return SetAnyObject("response_format");
  SetSchema({"response_format", "schema"}, schema, {});
}

// The schema is in an object "json_schema", or beside the type, as llama.cpp and others take it.
void ConstraintReader::ReadJsonSchema(const Json& format) {
  const std::string field = "response_format";
  const Json wrapped = format.value("json_schema", Json());
  if (wrapped.is_null() && format.contains("schema")) {
    reader_.IgnoreUnknown(field, format, {"type", "schema", "name", "description", "strict"});
    return SetSchema({field, "schema"}, format["schema"], {});
  }
  if (!wrapped.is_object() || !wrapped.contains("schema")) {
    return reader_.Fail(
        field, fmt::format("response_format.json_schema must be an object with a \"schema\": "
                           "{{\"name\": ..., \"schema\": {{...}}}}, got {}",
                           Describe(wrapped)));
  }
  reader_.IgnoreUnknown(field, format, {"type", "json_schema"});
  reader_.IgnoreUnknown(field + ".json_schema", wrapped,
                        {"name", "description", "schema", "strict"});
  SetSchema({field, "json_schema", "schema"}, wrapped["schema"], {});
}

void ConstraintReader::ReadStructuredOutputs() {
  reader_.Object("structured_outputs", [this](const Json& object) {
    const std::string field = "structured_outputs";
    FieldReader inner(object, field + ".");
    WhiteSpace space;
    inner.Bool("disable_any_whitespace", space.none);
    inner.String("whitespace_pattern", kStopStringBytesMax, space.pattern);
    inner.Unsupported("disable_additional_properties",
                      "set \"additionalProperties\": false in the schema");
    if (const Json* json = inner.Find("json")) SetSchema({field, "json"}, *json, space);
    if (const Json* regex = inner.Find("regex"))
      SetText(field + ".regex", GrammarKind::kRegex, *regex);
    if (const Json* choice = inner.Find("choice")) SetChoice(field + ".choice", *choice);
    if (const Json* text = inner.Find("grammar"))
      SetText(field + ".grammar", GrammarKind::kLark, *text);
    bool any_object = false;
    inner.Bool("json_object", any_object);
    if (any_object) SetAnyObject(field + ".json_object");
    if (const Json* tags = inner.Find("structural_tag")) SetTags({field, "structural_tag"}, *tags);
    if (inner.error()) return reader_.Fail(*inner.error());
    reader_.AddIgnoredOf(inner);
    if (!reader_.failed() && options_.params.grammar.empty()) {
      reader_.Fail(field,
                   "structured_outputs must have one of json, regex, choice, grammar, "
                   "json_object and structural_tag");
    }
  });
}

// The older names of the same.
void ConstraintReader::ReadGuided() {
  WhiteSpace space;
  reader_.String("guided_whitespace_pattern", kStopStringBytesMax, space.pattern);
  if (const Json* json = reader_.Find("guided_json")) SetSchema({"guided_json"}, *json, space);
  if (const Json* regex = reader_.Find("guided_regex")) {
    SetText("guided_regex", GrammarKind::kRegex, *regex);
  }
  if (const Json* choice = reader_.Find("guided_choice")) SetChoice("guided_choice", *choice);
  if (const Json* text = reader_.Find("guided_grammar")) {
    SetText("guided_grammar", GrammarKind::kLark, *text);
  }
  // What users of llama.cpp and of SGLang send. An empty text is llama.cpp's way to send none.
  for (const char* field : {"grammar", "ebnf"}) {
    const Json* text = reader_.Find(field);
    if (text != nullptr && *text != Json("")) SetText(field, GrammarKind::kLark, *text);
  }
  if (const Json* tags = reader_.Find("structural_tag")) SetTags({"structural_tag"}, *tags);
}

}  // namespace

void ReadConstraint(FieldReader& reader, const OrderedFields& fields, GenerationOptions& options) {
  ConstraintReader(reader, fields, options).Read();
}

}  // namespace millrace::serve
