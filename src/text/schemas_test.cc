// JSON schemas as constraints: what cannot be kept is refused by keyword and place.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "text/grammars.h"
#include "text/token_table.h"

namespace millrace::text {
namespace {

class Schemas : public testing::Test {
 protected:
  static Status Check(const std::string& schema) {
    return Grammars::Of(ByteTable())->Check(GrammarOf(GrammarKind::kJsonSchema, schema));
  }
  static Grammars& Compiler() {
    static const auto grammars = Grammars::Of(ByteTable());
    return *grammars;
  }
  // Whether the answer may be this text.
  static bool Allows(const std::string& schema, const std::string& text) {
    const auto matcher = Compiler().MatcherOf(GrammarOf(GrammarKind::kJsonSchema, schema));
    const std::vector<TokenId> tokens(text.begin(), text.end());
    constexpr TokenId kEnd = 256;
    for (size_t i = 0; i <= tokens.size(); ++i) {
      const auto allowed = matcher->Allowed(std::span(tokens).first(i));
      if (!allowed.ok()) {
        ADD_FAILURE() << allowed.status().message() << " in " << schema;
        return false;
      }
      const auto next = static_cast<size_t>(i < tokens.size() ? tokens[i] : kEnd);
      if (((*allowed)[next / 32] >> (next % 32) & 1) == 0) return false;
    }
    return true;
  }
};

TEST_F(Schemas, WhatCannotBeKeptIsRefusedByKeywordAndPlace) {
  struct Case {
    const char* schema;
    std::vector<std::string> named;
  };
  const std::vector<Case> cases = {
      {R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})",
       {"\"uniqueItems\"", "#/properties/a"}},
      {R"({"items": {"not": {"type": "null"}}})", {"\"not\"", "#/items"}},
      {R"({"not": {}})", {"\"not\"", "no value"}},
      {R"({"if": {"type": "string"}, "then": {"minLength": 2}})", {"\"if\"", "#"}},
      {R"({"anyOf": [{"type": "null"}, {"contains": {"const": 1}}]})",
       {"\"contains\"", "#/anyOf/1"}},
      {R"({"dependentRequired": {"a": ["b"]}})", {"\"dependentRequired\""}},
      {R"({"dependentSchemas": {"a": {"required": ["b"]}}})", {"\"dependentSchemas\""}},
      {R"({"dependencies": {"a": ["b"]}})", {"\"dependencies\""}},
      {R"({"propertyNames": {"minLength": 2}})", {"\"propertyNames\""}},
      {R"({"items": {"type": "object", "minProperties": 2}})", {"\"minProperties\"", "#/items"}},
      {R"({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false})",
       {"\"unevaluatedProperties\""}},
      {R"({"allOf": [{}], "unevaluatedItems": false})", {"\"unevaluatedItems\""}},
      {R"({"$dynamicRef": "#node"})", {"\"$dynamicRef\""}},
      {R"({"$defs": {"x/y": {"uniqueItems": true}}, "$ref": "#/$defs/x~1y"})",
       {"\"uniqueItems\"", "#/$defs/x~1y"}},
      {R"({"properties": {"a": {"pattern": "(?=b)c"}}})", {"\"pattern\"", "#/properties/a"}},
      {R"({"properties": {"a": {"pattern": "(b)\\1"}}})", {"\"pattern\"", "#/properties/a"}},
      {R"({"properties": {"a": {"pattern": 7}}})", {"\"pattern\"", "#/properties/a", "7"}},
      {R"({"properties": {"a": {"$ref": "#/$defs/none"}}})", {"\"$ref\"", "#/properties/a"}},
      {R"({"properties": {"a": {"$ref": "http://127.0.0.1:1/s.json"}}})",
       {"\"$ref\" at #/properties/a", "another document"}},
      {R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", {"\"oneOf\"", "#"}},
      {R"({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}})",
       {"\"oneOf\"", "#/properties/a"}},
      {R"({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer",
          "minimum": 3, "maximum": 2}}})",
       {"\"minimum\" and \"maximum\"", "#/properties/a"}},
      {R"({"enum": []})", {"\"enum\""}},
      {R"({"type": ["string", "text"]})", {"\"type\"", "text"}},
      {R"({"type": []})", {"\"type\""}},
      {R"({"minimum": "äääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääää"})",
       {"\"minimum\""}},
      {R"({"maxLength": -1})", {"\"maxLength\""}},
      {R"({"multipleOf": 0})", {"\"multipleOf\""}},
      {R"({"required": [1]})", {"\"required\""}},
      {R"({"properties": {"a": 5}})", {"#/properties/a"}},
      {R"({"properties": {"a": {"const": 9007199254740993}}})",
       {"\"const\"", "#/properties/a", "9007199254740993"}},
      {R"({"enum": [[{"a": 18446744073709551615}]]})", {"\"enum\"", "18446744073709551615"}},
  };
  for (const Case& c : cases) {
    const Status status = Check(c.schema);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.schema << status.message();
    for (const std::string& name : c.named) {
      EXPECT_NE(status.message().find(name), std::string::npos)
          << c.schema << " is refused with " << status.message();
    }
  }
}

TEST_F(Schemas, WhatHasNoEffectIsNoObstacle) {
  for (const char* schema :
       {R"({"uniqueItems": true, "maxItems": 1})", R"({"not": false})", R"({"then": false})",
        R"({"contains": {"const": 1}, "minContains": 0})", R"({"dependentRequired": {"a": []}})",
        R"({"dependencies": {}})", R"({"propertyNames": {"type": "string"}})",
        R"({"unevaluatedProperties": true})", R"({"deprecated": true, "type": "string"})",
        R"({"unevaluatedProperties": false, "additionalProperties": {"type": "null"}})",
        R"({"contentEncoding": "base64", "contentSchema": {"not": {}}, "type": "string"})",
        R"({"$dynamicAnchor": "node", "type": "object"})",
        R"({"$defs": {"unused": {"uniqueItems": true}}, "type": "null"})",
        R"({"properties": {"not": {"type": "null"}, "if": {}}, "enum": [{"not": null}]})",
        R"({"minProperties": 1})", R"({"minProperties": 2, "required": ["a", "b"]})",
        R"({"maxLength": 10.0})", R"({"x-guidance": {"lenient": true}, "not": {"const": 1}})"}) {
    const Status status = Check(schema);
    EXPECT_TRUE(status.ok()) << schema << ": " << status.message();
  }
}

TEST_F(Schemas, AlternativesThatExcludeEachOtherMayBeReferences) {
  const std::string pets = R"({"$defs": {
      "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"],
              "additionalProperties": false},
      "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}, "mate": {
              "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}}, "required": ["kind"],
              "additionalProperties": false}},
      "discriminator": {"propertyName": "kind"},
      "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"type": "null"}]})";
  EXPECT_TRUE(Check(pets).ok()) << Check(pets).message();
  EXPECT_TRUE(Allows(pets, R"({"kind":"wolf","mate":{"kind":"cat"}})"));
  EXPECT_TRUE(Allows(pets, "null"));
  EXPECT_FALSE(Allows(pets, R"({"kind":"fish"})"));
  // Both may have a kind that is 1, or none.
  for (
      const char* overlapping :
      {R"({"oneOf": [{"properties": {"kind": {"const": 1}}},
                      {"properties": {"kind": {"const": 2}}}]})",
       R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": 1}}, "required": ["kind"]},
                      {"type": "object", "properties": {"kind": {"const": 1.0}},
                       "required": ["kind"]}]})"}) {
    EXPECT_FALSE(Check(overlapping).ok()) << overlapping;
  }
}

TEST_F(Schemas, NamesOfPropertiesMayBeListedOrMatchAPattern) {
  const std::string listed =
      R"({"type": "object", "propertyNames": {"enum": ["a", "b.c"]},
          "additionalProperties": {"type": "boolean"}})";
  EXPECT_TRUE(Allows(listed, R"({"a":true,"b.c":false})"));
  EXPECT_FALSE(Allows(listed, R"({"bxc":true})"));
  EXPECT_FALSE(Allows(listed, R"({"a":1})"));
  const std::string matching =
      R"({"type": "object", "propertyNames": {"type": "string", "pattern": "^x"}})";
  EXPECT_TRUE(Allows(matching, R"({"xy":1})"));
  EXPECT_FALSE(Allows(matching, R"({"yx":1})"));
}

TEST_F(Schemas, ClosedObjectsMayBeCalledUnevaluated) {
  const std::string closed =
      R"({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": false})";
  EXPECT_TRUE(Allows(closed, R"({"a":1})"));
  EXPECT_FALSE(Allows(closed, R"({"b":1})"));
}

TEST_F(Schemas, BoundsOfManyDigitsAreKept) {
  const std::string small = R"({"type": "integer", "minimum": -9223372036854775808,
                                "maximum": 9223372036854775807})";
  EXPECT_TRUE(Allows(small, "9007199254740993"));
  EXPECT_FALSE(Allows(small, "9223372036854775808"));
  EXPECT_FALSE(Allows(small, "-9223372036854775809"));
  const std::string exact = R"({"enum": [9007199254740992, 0.1, 1e21]})";
  EXPECT_TRUE(Allows(exact, "9007199254740992"));
  EXPECT_TRUE(Allows(exact, "0.1"));
  EXPECT_FALSE(Allows(exact, "9007199254740993"));
}

TEST_F(Schemas, AlsoWithinAGrammar) {
  const auto check = [](const std::string& schema) {
    return Compiler().Check(GrammarOf(
        GrammarKind::kLark, "start: \"%json\" body \"%json {\"\nbody: %json " + schema + "\n"));
  };
  EXPECT_TRUE(check(R"({"type": "string", "format": "path", "uniqueItems": false})").ok());
  const Status refused = check("{\"properties\": {\"a\":\n {\"uniqueItems\": true}}}");
  EXPECT_NE(refused.message().find("\"uniqueItems\" at #/properties/a"), std::string::npos)
      << refused.message();
}

// Rust's expressions have sets in classes, ECMAScript's have not.
TEST_F(Schemas, ClassesOfPatternsAreThoseOfEcmaScript) {
  const struct {
    const char* pattern;
    const char* matches;
    const char* does_not;
  } cases[] = {{"^[[:alpha:]]$", "a]", "b"},
               {"^[a&&b]$", "&", "c"},
               {"^[+--]$", ",", "a"},
               {"^[~~]$", "~", "a"},
               {"^[\\\\[]x$", "[x", "x"}};
  for (const auto& c : cases) {
    const std::string schema =
        std::string(R"({"type": "string", "pattern": ")") + c.pattern + "\"}";
    const auto text = [](const char* value) { return "\"" + std::string(value) + "\""; };
    EXPECT_TRUE(Allows(schema, text(c.matches))) << c.pattern;
    EXPECT_FALSE(Allows(schema, text(c.does_not))) << c.pattern;
  }
}

}  // namespace
}  // namespace millrace::text
