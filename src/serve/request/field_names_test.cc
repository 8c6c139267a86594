// Errors name the fields of the client's own API.
#include "serve/request/field_names.h"

#include <gtest/gtest.h>

namespace millrace::serve {
namespace {

FieldNames Names() {
  FieldNames names;
  names.Add("max_tokens", "options.num_predict");
  names.Add("messages", "input");
  names.Add("messages[3]", "input[5]");
  names.Add("messages[3].content", "input[5].output");
  names.Add("stop", "stop_sequences");
  return names;
}

TEST(FieldNames, ThePathWithTheLongestKnownBeginning) {
  EXPECT_EQ(Names().Of("max_tokens"), "options.num_predict");
  EXPECT_EQ(Names().Of("messages[3].role"), "input[5].role");
  EXPECT_EQ(Names().Of("messages[3].content[0].text"), "input[5].output[0].text");
  EXPECT_EQ(Names().Of("messages[30].role"), "input[30].role");
  EXPECT_EQ(Names().Of("max_tokens_more"), "max_tokens_more");
  EXPECT_EQ(Names().Of(""), "");
}

TEST(FieldNames, PathsInMessagesAreRenamed) {
  EXPECT_EQ(Names().InMessage("max_tokens must be at least 1, got 0"),
            "options.num_predict must be at least 1, got 0");
  EXPECT_EQ(Names().InMessage("lower n or max_tokens."), "lower n or options.num_predict.");
  EXPECT_EQ(Names().InMessage("stop[2] must have 1 byte"), "stop_sequences[2] must have 1 byte");
}

TEST(FieldNames, WordsAndValuesStayAsTheyAre) {
  EXPECT_EQ(Names().InMessage("stop has 17 strings that stop it"),
            "stop_sequences has 17 strings that stop it");
  EXPECT_EQ(Names().InMessage("the messages of a chat"), "the messages of a chat");
  EXPECT_EQ(Names().InMessage(R"(x must be y, got "max_tokens \" max_tokens")"),
            R"(x must be y, got "max_tokens \" max_tokens")");
  EXPECT_EQ(Names().InMessage("\"max_tokens"), "\"max_tokens");
}

TEST(FieldNames, OfAnError) {
  Json error = {{"message", "max_tokens is too large"}, {"param", "max_tokens"}, {"code", nullptr}};
  Names().Rename(error);
  EXPECT_EQ(error["message"], "options.num_predict is too large");
  EXPECT_EQ(error["param"], "options.num_predict");
  Json none;
  Names().Rename(none);
  EXPECT_TRUE(none.is_null());
}

TEST(FieldNames, AreStored) {
  const FieldNames again = FieldNames::FromJson(Names().ToJson());
  EXPECT_EQ(again.Of("messages[3]"), "input[5]");
  EXPECT_EQ(FieldNames::FromJson(Json("x")).Of("stop"), "stop");
}

}  // namespace
}  // namespace millrace::serve
