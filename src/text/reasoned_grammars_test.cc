// Constrained answers of models that reason first. The texts are cut into tokens at random, so that
// tokens hold parts of markers and of their neighbours.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "text/answer_parser.h"
#include "text/grammars.h"
#include "text/testing/words.h"
#include "text/tool_format.h"

namespace millrace::text {
namespace {

struct Reasoning {
  ReasoningFormat format = *FindReasoningFormat("think");
  bool begun = false;
  std::optional<TokenId> begin_id, end_id;
  std::optional<int> budget;
  std::string body;  // a grammar

  std::string Grammar() const {
    OrderedJson json = {{"begin", std::string(format.begin)},
                        {"end", std::string(format.end)},
                        {"begun", begun},
                        {"grammar", body}};
    if (begin_id) json["begin_id"] = *begin_id;
    if (end_id) json["end_id"] = *end_id;
    if (budget) json["budget"] = *budget;
    return GrammarOf(GrammarKind::kReasoned, json.dump());
  }

  AnswerPieces Split(std::string_view text) const {
    AnswerParserOptions options;
    options.reasoning = &format;
    options.begins_in_reasoning = begun;
    AnswerParser parser(std::move(options));
    AnswerPieces pieces;
    parser.Push(text, pieces);
    parser.Finish(pieces);
    return pieces;
  }
};

std::vector<TokenId> Cut(const std::string& text, Rng& rng, TestWords& words) {
  std::vector<TokenId> tokens;
  for (size_t at = 0; at < text.size();) {
    const auto size = static_cast<size_t>(rng.Between(1, rng.Between(0, 3) == 0 ? 9 : 3));
    const std::string piece = text.substr(at, size);
    tokens.push_back(words.Add(piece, false));
    at += piece.size();
  }
  return tokens;
}

std::string Any(Rng& rng, const std::vector<std::string>& of) {
  return of[static_cast<size_t>(rng.Between(0, std::ssize(of) - 1))];
}

// What the tests' bodies accept.
struct Body {
  std::string grammar;
  std::vector<std::string> texts;
};

std::vector<Body> Bodies() {
  return {
      {GrammarOf(GrammarKind::kChoice, R"(["yes", "no", ">yes", "</th", "1"])"),
       {"yes", "no", ">yes", "</th", "1"}},
      {GrammarOf(GrammarKind::kJsonSchema, R"({"enum": [1, "</think>", {"a": [true]}]})"),
       {"1", "\"</think>\"", "{\"a\":[true]}"}},
      {GrammarOf(GrammarKind::kRegex, "[a-c]{2}>?\\n"), {"ab\n", "cc>\n"}},
      {GrammarOf(GrammarKind::kLark, "start: \"a\" | \"(\" start \")\"\n"), {"a", "((a))"}},
      {GrammarOf(GrammarKind::kTags, R"({"structures": [{"begin": "<f=a>",
          "schema": {"type": "boolean"}, "end": "</f>"}], "triggers": ["<f="]})"),
       {"free", "x<f=a>true</f>y", "<f=a>false</f>"}},
      {GrammarOf(GrammarKind::kLark,
                 "start: \"<call>[{\" body \"}]\"\nbody: %json {\"enum\": "
                 "[{\"name\": \"f\"}]}\n"),
       {"<call>[{{\"name\":\"f\"}}]"}},
  };
}

class ReasonedGrammars : public testing::Test {
 protected:
  // Follows the tokens; the index of the first that is not allowed, or their number.
  static size_t Follow(Grammars& grammars, const std::string& grammar,
                       const std::vector<TokenId>& tokens) {
    const auto matcher = grammars.MatcherOf(grammar);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto allowed = matcher->Allowed(std::span(tokens).first(i));
      if (!allowed.ok()) ADD_FAILURE() << allowed.status().message();
      if (!allowed.ok() || !May(*allowed, tokens[i])) return i;
    }
    return tokens.size();
  }
};

struct Path {
  size_t body = 0;
  bool begun = false;
  std::string content;
  std::vector<TokenId> tokens;
};

// Of answers with and without reasoning. A marker is cut like any text, or is its special token.
std::vector<Path> Paths(const ReasoningFormat& format, bool special, Rng& rng, TestWords& words) {
  const std::string begin(format.begin), end(format.end);
  std::vector<Path> paths;
  const std::vector<Body> bodies = Bodies();
  for (int i = 0; i < 150; ++i) {
    Path path;
    path.body = static_cast<size_t>(rng.Between(0, std::ssize(bodies) - 1));
    path.begun = rng.Between(0, 1) == 0;
    path.content = Any(rng, bodies[path.body].texts);
    const auto cut = [&](const std::string& text) {
      for (const TokenId id : Cut(text, rng, words)) path.tokens.push_back(id);
    };
    std::string text;
    const auto marker = [&](const std::string& of) {
      if (!special || rng.Between(0, 1) == 0) return text.append(of);
      cut(std::exchange(text, {}));
      path.tokens.push_back(words.Add(of, true));
      return text;
    };
    const bool reasons = path.begun || rng.Between(0, 3) > 0;
    if (reasons && !path.begun) marker(begin);
    if (reasons) {
      text += Any(rng, {"", "\nabc", "a < b </th", "<", "{\"a\": 1}\n\n", "\n", "<think> yes"});
      marker(end);
      text += Any(rng, {"", "\n", "\n\n", " ", "\n \n"});
    }
    cut(text + path.content);
    paths.push_back(std::move(path));
  }
  return paths;
}

TEST_F(ReasonedGrammars, AllSpellingsOfTheMarkersAreFollowedAndTheAnswerEnds) {
  const std::vector<Body> bodies = Bodies();
  for (const char* name : {"think", "kimi"}) {
    for (const bool special : {false, true}) {
      Rng rng(special ? 1 : 2);
      TestWords words;
      Reasoning reasoning;
      reasoning.format = *FindReasoningFormat(name);
      if (special) {
        reasoning.begin_id = words.Add(std::string(reasoning.format.begin), true);
        reasoning.end_id = words.Add(std::string(reasoning.format.end), true);
      }
      const std::vector<Path> paths = Paths(reasoning.format, special, rng, words);
      const auto grammars = words.Compiler();
      for (const Path& path : paths) {
        reasoning.begun = path.begun;
        reasoning.body = bodies[path.body].grammar;
        std::string text;
        for (const TokenId id : path.tokens) text += words.TextOf(id);
        const std::string shown = words.Shown(path.tokens) + " of " + reasoning.Grammar();
        ASSERT_EQ(Follow(*grammars, reasoning.Grammar(), path.tokens), path.tokens.size()) << shown;
        // In one go, as after a move.
        const auto matcher = grammars->MatcherOf(reasoning.Grammar());
        const auto last = matcher->Allowed(path.tokens);
        ASSERT_TRUE(last.ok()) << last.status().message() << ": " << shown;
        EXPECT_TRUE(May(*last, TestWords::kEnd)) << shown;
        // The parser of answers sees the same.
        std::string content = reasoning.Split(text).content;
        if (content != path.content) content.erase(0, content.find_first_not_of(" \n"));
        const auto expected = path.content.substr(0, path.content.find_last_not_of(" \n") + 1);
        EXPECT_EQ(content.substr(0, content.find_last_not_of(" \n") + 1), expected) << shown;
      }
    }
  }
}

// Whether `text` is the beginning of an answer with one of the choices.
bool IsBeginning(std::string_view text, bool begun, const std::vector<std::string>& choices) {
  const auto of_choice = [&choices](std::string_view rest) {
    return std::ranges::any_of(
        choices, [rest](const std::string& choice) { return choice.starts_with(rest); });
  };
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  if (!begun) {
    if (kBegin.starts_with(text) || of_choice(text)) return true;
    if (!text.starts_with(kBegin)) return false;
    text.remove_prefix(kBegin.size());
  }
  const size_t end = text.find(kEnd);
  if (end == std::string_view::npos) return true;
  text.remove_prefix(end + kEnd.size());
  for (size_t gap = 0; gap <= 4; ++gap) {
    if (of_choice(text)) return true;
    if (text.empty() || (text[0] != ' ' && text[0] != '\n')) return false;
    text.remove_prefix(1);
  }
  return false;
}

// Each token of the vocabulary, at each place of many answers.
TEST_F(ReasonedGrammars, NothingElseIsAllowed) {
  const Body body = Bodies()[0];
  Rng rng(7);
  TestWords words;
  const std::vector<Path> paths = Paths(*FindReasoningFormat("think"), false, rng, words);
  for (const char* text : {"<think></think>yes", "<think></think>you", "</think>1", "</think>2",
                           "</think>\n\n", "</think>\n\n\n\n\n", ">\nye", ">\nyo", "x</think>",
                           "k>", "k>  no", "k>  on", "k>>yes", " <think>", "\nyes"}) {
    words.Add(text, false);
  }
  const auto grammars = words.Compiler();
  for (const Path& path : paths) {
    if (path.body != 0) continue;
    Reasoning reasoning;
    reasoning.begun = path.begun;
    reasoning.body = body.grammar;
    const auto matcher = grammars->MatcherOf(reasoning.Grammar());
    std::string text;
    for (size_t i = 0; i < path.tokens.size(); ++i) {
      const auto allowed = matcher->Allowed(std::span(path.tokens).first(i));
      ASSERT_TRUE(allowed.ok()) << allowed.status().message();
      for (size_t t = 0; t < words.size(); ++t) {
        const auto id = static_cast<TokenId>(t);
        if (words.IsSpecial(id) || id == 0xFF) continue;  // that byte is in no text
        ASSERT_EQ(May(*allowed, id), IsBeginning(text + words.TextOf(id), path.begun, body.texts))
            << Json(text).dump(-1, ' ', false, Json::error_handler_t::replace) << " and "
            << Json(words.TextOf(id)).dump(-1, ' ', false, Json::error_handler_t::replace);
      }
      text += words.TextOf(path.tokens[i]);
    }
  }
}

// What a model that likes nothing better than the tokens it is given writes.
TEST_F(ReasonedGrammars, ABudgetHoldsHoweverTheMarkersAreSpelled) {
  const std::vector<Body> bodies = Bodies();
  for (const bool special : {false, true}) {
    Rng rng(special ? 11 : 12);
    TestWords words;
    Reasoning reasoning;
    if (special) {
      reasoning.begin_id = words.Add("<think>", true);
      reasoning.end_id = words.Add("</think>", true);
    }
    for (const char* text : {"<th", "ink>", "ink>x", "<think>", "<think>x", "</thi", "nk>", "nk>\n",
                             "nk>y", "</think>", "</think>\n\n", "one", "two", " <think>"}) {
      words.Add(text, false);
    }
    const auto grammars = words.Compiler();
    for (int round = 0; round < 60; ++round) {
      reasoning.begun = rng.Between(0, 1) == 0;
      reasoning.budget = static_cast<int>(rng.Between(0, 3));
      reasoning.body = rng.Between(0, 1) == 0 ? "" : bodies[0].grammar;
      const auto matcher = grammars->MatcherOf(reasoning.Grammar());
      std::vector<TokenId> tokens;
      std::string text;
      int thought = 0;  // tokens that only have reasoning in them
      for (int i = 0; i < 40; ++i) {
        const auto allowed = matcher->Allowed(tokens);
        ASSERT_TRUE(allowed.ok()) << allowed.status().message();
        std::vector<TokenId> may;
        for (size_t t = 0; t < words.size(); ++t) {
          // Single bytes only where nothing else may come.
          if (t >= 256 && May(*allowed, static_cast<TokenId>(t))) {
            may.push_back(static_cast<TokenId>(t));
          }
        }
        for (TokenId t = 0; t < 256 && may.empty(); ++t) {
          if (May(*allowed, t)) may.push_back(t);
        }
        ASSERT_FALSE(may.empty()) << words.Shown(tokens);
        const TokenId next = may[static_cast<size_t>(rng.Between(0, std::ssize(may) - 1))];
        if (next == TestWords::kEnd) break;
        const size_t before = reasoning.Split(text).reasoning.size();
        tokens.push_back(next);
        text += words.TextOf(next);
        thought += reasoning.Split(text).reasoning.size() > before ? 1 : 0;
      }
      // Parts of the end marker may look like reasoning until it is whole.
      std::string reasoned = reasoning.Split(text).reasoning;
      if (*reasoning.budget == 0 && text.find("</think>") != std::string::npos) {
        EXPECT_EQ(reasoned, "") << words.Shown(tokens) << " of " << reasoning.Grammar();
      }
      EXPECT_LE(thought, *reasoning.budget + 5) << words.Shown(tokens);
    }
  }
}

TEST_F(ReasonedGrammars, ABudgetAloneChangesNothingElse) {
  TestWords words;
  const TokenId call = words.Add("<tool_call>", true), one = words.Add("one", false);
  const TokenId begin = words.Add("<think>", false), end = words.Add("</think>", false);
  const auto grammars = words.Compiler();
  Reasoning reasoning;
  reasoning.budget = 2;
  const auto matcher = grammars->MatcherOf(reasoning.Grammar());
  const auto anything = [&](const std::vector<TokenId>& tokens) {
    const auto allowed = matcher->Allowed(tokens);
    return allowed.ok() && allowed->empty();
  };
  EXPECT_TRUE(anything({}));
  EXPECT_TRUE(anything({one}));
  EXPECT_TRUE(anything({call, one, TestWords::kEnd}));
  EXPECT_TRUE(anything({begin, one}));
  EXPECT_FALSE(anything({begin, one, one}));
  EXPECT_TRUE(May(*matcher->Allowed(std::vector<TokenId>{begin, one, one}), end));
  EXPECT_FALSE(May(*matcher->Allowed(std::vector<TokenId>{begin, one, one}), TestWords::kEnd));
  // A second part has what is left of the budget, and none if nothing is.
  const std::vector<TokenId> ended = {begin, one, one, end};
  EXPECT_FALSE(May(*matcher->Allowed(ended), begin));
  EXPECT_TRUE(May(*matcher->Allowed(ended), one));
  EXPECT_TRUE(May(*matcher->Allowed(ended), call));
  EXPECT_TRUE(May(*matcher->Allowed(ended), TestWords::kEnd));
  EXPECT_TRUE(anything({begin, one, one, end, one, call}));
}

// As servers before this wrote them, without ids that are null and with them.
TEST_F(ReasonedGrammars, GrammarsOfEarlierJournalsAreUnderstood) {
  TestWords words;
  const TokenId end = words.Add("</think>", true);
  const auto grammars = words.Compiler();
  const std::string grammar = GrammarOf(
      GrammarKind::kReasoned,
      R"({"begin":"<think>","end":"</think>","begun":true,"grammar":"choice:[\"1\"]","end_id":)" +
          std::to_string(end) + "}");
  EXPECT_EQ(Follow(*grammars, grammar, {'a', '<', end, '\n', '1', TestWords::kEnd}), 6u);
  for (const char* unsound : {"{}", R"({"begin":"","end":"b"})", R"({"begin":"a","end":1})",
                              R"({"begin":"a","end":"b","end_id":99999999})",
                              R"({"begin":"a","end":"b","grammar":"what:x"})"}) {
    EXPECT_EQ(grammars->Check(GrammarOf(GrammarKind::kReasoned, unsound)).code(),
              StatusCode::kInvalidArgument)
        << unsound;
  }
}

}  // namespace
}  // namespace millrace::text
