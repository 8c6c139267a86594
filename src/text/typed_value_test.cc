#include "text/typed_value.h"

#include <gtest/gtest.h>

#include "text/call_syntax.h"

namespace millrace::text {
namespace {

const OrderedJson kArguments = OrderedJson::parse(R"({
  "type": "object",
  "$defs": {
    "Unit": {"enum": ["c", "f", "1"]}, "Node": {"type": "object",
        "properties": {"next": {"$ref": "#/$defs/Node"}}},
    "Loop": {"$ref": "#/$defs/Loop"}, "Either": {"anyOf": [{"$ref": "#/$defs/Either"},
        {"type": "integer"}]}
  },
  "definitions": {"Id": {"type": "string"}},
  "properties": {
    "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"},
        "b": {"type": "boolean"},
    "a": {"type": "array", "items": {"type": "string"}}, "o": {"type": "object"},
        "z": {"type": "null"},
    "ns": {"type": ["string", "null"]}, "ni": {"type": "integer", "nullable": true},
    "any_s": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "one": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    "all": {"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]},
    "unit": {"$ref": "#/$defs/Unit"}, "id": {"$ref": "#/definitions/Id"},
        "node": {"$ref": "#/$defs/Node"},
    "loop": {"$ref": "#/$defs/Loop"}, "either": {"$ref": "#/$defs/Either"},
        "lost": {"$ref": "#/$defs/None"},
    "e": {"enum": ["1", "true", "null", "x"]}, "mixed": {"enum": ["auto", 1, true, null]},
        "c": {"const": "1"},
    "ci": {"const": 1}, "free": {}, "yes": true, "spelled": {"type": "str"},
        "odd-name.x": {"type": "string"},
    "optional_unit": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}
  }})");

TEST(TypedValue, FollowsTheSchema) {
  const struct {
    const char* parameter;
    const char* text;
    const char* json;
  } cases[] = {
      {"s", "1", "\"1\""},
      {"s", "true", "\"true\""},
      {"s", "null", "\"null\""},
      {"s", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
      {"s", "  two\n", "\"  two\\n\""},
      {"i", "12", "12"},
      {"i", " -7\n", "-7"},
      {"i", "5.0", "5"},
      {"i", "1.5", "\"1.5\""},
      {"i", "1e3", "\"1e3\""},
      {"i", "007", "\"007\""},
      {"i", "many", "\"many\""},
      {"i", "null", "\"null\""},
      {"i", "123456789012345678901234567890", "123456789012345678901234567890"},
      {"n", "0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"},
      {"n", "9007199254740993", "9007199254740993"},
      {"n", "1.50", "1.50"},
      {"n", "1e5", "1e5"},
      {"n", "12", "12"},
      {"n", "1e999", "\"1e999\""},
      {"n", "0x1F", "\"0x1F\""},
      {"b", "true", "true"},
      {"b", "False", "false"},
      {"b", "1", "\"1\""},
      {"b", "yes", "\"yes\""},
      {"a", "[\"1\", 2]", "[\"1\",2]"},
      {"a", "['x', None]", "[\"x\",null]"},
      {"a", "[1, 2", "\"[1, 2\""},
      {"a", "x, y", "\"x, y\""},
      {"a", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
      {"o", "{\"a\": [1, {\"b\": 10000000000000000000001}]}",
       "{\"a\":[1,{\"b\":10000000000000000000001}]}"},
      {"o", "{'a': True}", "{\"a\":true}"},
      {"z", "null", "null"},
      {"z", "None", "null"},
      {"ns", "null", "null"},
      {"ns", "12", "\"12\""},
      {"ns", "true", "\"true\""},
      {"ni", "null", "null"},
      {"ni", "3", "3"},
      {"any_s", "5", "\"5\""},
      {"any_s", "None", "null"},
      {"one", "5", "5"},
      {"one", "true", "true"},
      {"one", "x", "\"x\""},
      {"all", "5", "\"5\""},
      {"unit", "1", "\"1\""},
      {"unit", "c\n", "\"c\""},
      {"optional_unit", "1", "\"1\""},
      {"optional_unit", "null", "null"},
      {"id", "42", "\"42\""},
      {"node", "{\"next\": {}}", "{\"next\":{}}"},
      {"loop", "1", "1"},
      {"either", "1", "1"},
      {"either", "x", "\"x\""},
      {"lost", "1", "1"},
      {"e", "1", "\"1\""},
      {"e", "true", "\"true\""},
      {"e", "null", "\"null\""},
      {"e", "2", "\"2\""},
      {"mixed", "auto", "\"auto\""},
      {"mixed", "1", "1"},
      {"mixed", "true", "true"},
      {"mixed", "null", "null"},
      {"c", "1", "\"1\""},
      {"ci", "1", "1"},
      {"free", "1", "1"},
      {"free", "\"1\"", "\"1\""},
      {"free", "one", "\"one\""},
      {"yes", "[1]", "[1]"},
      {"spelled", "1", "\"1\""},
      {"odd-name.x", "1", "\"1\""},
      {"unknown", "1", "1"},
      {"unknown", "one", "\"one\""},
      {"unknown", "None", "null"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(TypedValue(&kArguments, c.parameter, c.text), c.json)
        << c.parameter << ": " << c.text;
    EXPECT_TRUE(OrderedJson::accept(TypedValue(&kArguments, c.parameter, c.text)));
  }
}

TEST(TypedValue, SchemasOfWholeArguments) {
  const auto typed = [](const char* schema, const char* text) {
    const OrderedJson arguments = OrderedJson::parse(schema);
    return TypedValue(&arguments, "p", text);
  };
  EXPECT_EQ(
      typed(R"({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"p": {"type": "string"}}}}})",
            "1"),
      "\"1\"");
  EXPECT_EQ(typed(R"({"allOf": [{}, {"properties": {"p": {"type": "string"}}}]})", "1"), "\"1\"");
  EXPECT_EQ(typed(R"({"additionalProperties": {"type": "string"}})", "1"), "\"1\"");
  EXPECT_EQ(typed(R"({"$ref": "#"})", "1"), "1");
  EXPECT_EQ(typed(R"({"properties": {"p": {"$ref": "#/~2"}}})", "1"), "1");
  EXPECT_EQ(typed(R"({"properties": {"p": {"$ref": "other.json"}}})", "1"), "1");
  EXPECT_EQ(typed(R"({"properties": {"p": {"type": 7, "enum": 8, "anyOf": 9, "allOf": 1}}})", "1"),
            "1");
  EXPECT_EQ(TypedValue(nullptr, "p", "1"), "1");
  // References that multiply are bounded.
  std::string many = "{\"$ref\": \"#/properties/p\"}";
  for (int i = 0; i < 8; ++i) many += ",{\"$ref\": \"#/properties/p\"}";
  EXPECT_EQ(typed(("{\"properties\": {\"p\": {\"anyOf\": [" + many + "]}}}").c_str(), "1"), "1");
}

TEST(TypedValue, FindsTheToolsOfARequest) {
  const OrderedJson tools = OrderedJson::parse(
      R"([7, {"function": 7}, {"type": "function", "function": {"name": "f",
        "parameters": {"a": 1}}}, {"name": "g"}])");
  ASSERT_NE(ArgumentsSchemaOf(tools, "f"), nullptr);
  EXPECT_EQ((*ArgumentsSchemaOf(tools, "f"))["a"], 1);
  EXPECT_EQ(ArgumentsSchemaOf(tools, "g"), nullptr);
  EXPECT_EQ(ArgumentsSchemaOf(tools, "h"), nullptr);
  EXPECT_EQ(ArgumentsSchemaOf(OrderedJson(), "h"), nullptr);
}

// What the tags of a call hold.
std::string Parsed(const ParsedCalls& parsed) {
  std::string text = parsed.whole ? "" : "not whole ";
  for (const ToolCall& call : parsed.calls) text += call.name + call.arguments;
  if (parsed.open) text += " open " + parsed.open->name + parsed.open->arguments;
  return text;
}

TEST(TaggedCalls, Parameters) {
  const OrderedJson tools;
  const auto ended = [&](std::string_view text) {
    return Parsed(ParseParameterTags(text, tools, true));
  };
  const auto cut = [&](std::string_view text) {
    return Parsed(ParseParameterTags(text, tools, false));
  };
  EXPECT_EQ(ended("\n<function=f>\n<parameter=a>\n\n x\n\n</parameter>\n</function>\n"),
            "f{\"a\":\"\\n x\\n\"}")
      << "one line end at each side is not of the value";
  EXPECT_EQ(ended("<function=f></function>"), "f{}");
  EXPECT_EQ(ended("<function=f>\n<parameter=a>\n1\n</parameter>\n"), "f{\"a\":1}") << "no end";
  EXPECT_EQ(ended("<function=f><parameter=a>x\n<parameter=b>y\n</function>"),
            "f{\"a\":\"x\",\"b\":\"y\"}")
      << "no ends of parameters";
  EXPECT_EQ(ended("<function=f><parameter=a>has </parameter> within</parameter></function>"),
            "f{\"a\":\"has </parameter> within\"}");
  EXPECT_EQ(ended("<function=f><parameter=a b-c.d>x</parameter></function>"),
            "f{\"a b-c.d\":\"x\"}");
  EXPECT_EQ(ended("<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>"),
            "f{\"a\":2}");
  EXPECT_EQ(ended("<function=f></function>\n<function=g></function>"), "f{}g{}");
  EXPECT_EQ(ended("<function=f><parameter=a>{\"q\": \"</x>\"}</parameter></function>"),
            "f{\"a\":{\"q\":\"</x>\"}}");
  EXPECT_EQ(ended("<function=f><parameter=a>x"), "not whole ");
  EXPECT_EQ(ended("<function=f>x</function>"), "not whole ");
  EXPECT_EQ(ended("<function=two words></function>"), "not whole ");
  EXPECT_EQ(ended("<function=></function>"), "not whole ");
  EXPECT_EQ(cut("<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx"),
            "not whole  open f{\"a\":1");
  EXPECT_EQ(cut("<function=f>\n<parameter=a>\n1\n</parameter>\n<para"),
            "not whole  open f{\"a\":1");
  EXPECT_EQ(cut("<function=f>"), "not whole  open f{");
  EXPECT_EQ(cut("<function=f>\n</function>"), "f{}");
  EXPECT_EQ(cut("<funct"), "not whole ");
}

TEST(TaggedCalls, KeysAndValues) {
  const OrderedJson tools;
  const auto ended = [&](std::string_view text) {
    return Parsed(ParseKeyValueTags(text, tools, true));
  };
  const auto cut = [&](std::string_view text) {
    return Parsed(ParseKeyValueTags(text, tools, false));
  };
  EXPECT_EQ(ended("f\n<arg_key>a</arg_key>\n<arg_value> x\n</arg_value>\n"), "f{\"a\":\" x\\n\"}")
      << "nothing is trimmed";
  EXPECT_EQ(ended("f"), "f{}");
  EXPECT_EQ(ended("f<arg_key>a</arg_key><arg_value>has </arg_value> within</arg_value>"),
            "f{\"a\":\"has </arg_value> within\"}");
  EXPECT_EQ(ended("f<arg_key>a</arg_key><arg_value>x"), "not whole ");
  EXPECT_EQ(ended("f x"), "not whole ");
  EXPECT_EQ(ended(""), "not whole ");
  EXPECT_EQ(cut("f"), "not whole ") << "the name may go on";
  EXPECT_EQ(cut("f\n"), "not whole  open f{");
  EXPECT_EQ(cut("f\n<arg_key>a</arg_key><arg_value>1</arg_value><arg_k"),
            "not whole  open f{\"a\":1");
  EXPECT_EQ(cut("f\n<arg_key>a</arg_key><arg_value>1"), "not whole  open f{");
}

}  // namespace
}  // namespace millrace::text
