// What a GBNF grammar means, read from its documentation and written as plainly as possible: a
// parser into a tree, and the set of places at which a part can end that begins at a place. It
// shares nothing with rust/src/gbnf*.rs and is slow. For tests; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::text {

inline std::u32string CodePoints(std::string_view utf8) {
  std::u32string out;
  for (size_t i = 0; i < utf8.size();) {
    const auto first = static_cast<uint8_t>(utf8[i]);
    const int more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    char32_t c = more == 0 ? first : first & (0x3F >> more);
    for (int k = 1; k <= more; ++k) c = c << 6 | (static_cast<uint8_t>(utf8.at(i + k)) & 0x3F);
    out.push_back(c);
    i += static_cast<size_t>(more) + 1;
  }
  return out;
}

inline std::string Utf8(std::u32string_view text) {
  std::string out;
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  for (const char32_t c : text) {
    if (c < 0x80) {
      put(c);
    } else if (c < 0x800) {
      put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
      put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
    } else {
      put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F));
      put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
    }
  }
  return out;
}

// A grammar that is known to be well-formed. Texts have at most 63 characters.
class GbnfReading {
 public:
  explicit GbnfReading(std::string_view grammar) : text_(CodePoints(grammar)) {
    for (Skip(true); at_ < text_.size(); Skip(true)) {
      const std::u32string name = Name();
      Skip(false);
      at_ += 3;  // ::=
      Skip(true);
      rules_[name] = Alternatives(false);
    }
  }

  bool Matches(std::string_view utf8) {
    input_ = CodePoints(utf8);
    MR_CHECK(input_.size() < 64);
    ends_.clear();
    const std::pair<std::u32string, size_t> start = {U"root", 0};
    ends_[start] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      // What is asked for while this goes on is in the next round.
      const auto known = ends_;
      for (const auto& [part, before] : known) {
        const Places after = Ends(rules_.at(part.first), Places{1} << part.second);
        if (after != before) ends_[part] = after, changed = true;
      }
      changed |= ends_.size() != known.size();
    }
    return (ends_[start] >> input_.size() & 1) != 0;
  }

  // A text that matches, if one was found within the depth.
  std::optional<std::string> Draw(Rng& rng, int depth) {
    std::u32string out;
    drawing_ = 5'000;
    if (!Draw(rules_.at(U"root"), rng, depth, out) || out.size() > 60) return std::nullopt;
    return Utf8(out);
  }

  // Characters that the grammar mentions, and a few others.
  std::u32string Alphabet() const {
    std::u32string out = U"az09 \n\"\\\u00e9\u4e00\U0001F600";
    for (const auto& [name, node] : rules_) Mention(node, out);
    return out;
  }

 private:
  using Places = uint64_t;
  struct Node {
    enum class Kind { kChars, kRule, kSequence, kChoice, kRepeat } kind;
    std::vector<std::pair<char32_t, char32_t>> ranges = {};
    bool negated = false;
    std::u32string rule = {};
    std::vector<Node> items = {};
    int min = 0;
    std::optional<int> max = {};
  };

  // ---- The notation ----

  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  void Skip(bool lines) {
    while (true) {
      const char32_t c = Peek();
      if (c == '#') {
        while (at_ < text_.size() && Peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool InName(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::u32string Name() {
    std::u32string name;
    while (InName(Peek())) name.push_back(text_[at_++]);
    MR_CHECK(!name.empty());
    return name;
  }
  int Number() {
    int number = 0;
    while (Peek() >= '0' && Peek() <= '9')
      number = number * 10 + static_cast<int>(text_[at_++] - '0');
    return number;
  }
  char32_t Hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = text_.at(at_++);
      value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }
  char32_t Character() {
    const char32_t c = text_.at(at_++);
    if (c != '\\') return c;
    switch (const char32_t escape = text_.at(at_++)) {
      case 'x': return Hex(2);
      case 'u': return Hex(4);
      case 'U': return Hex(8);
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      default: return escape;
    }
  }

  Node Alternatives(bool nested) {
    Node choice{Node::Kind::kChoice};
    choice.items.push_back(Sequence(nested));
    while (Peek() == '|') {
      ++at_;
      Skip(true);
      choice.items.push_back(Sequence(nested));
    }
    return choice;
  }

  Node Sequence(bool nested) {
    Node sequence{Node::Kind::kSequence};
    while (true) {
      Node item{Node::Kind::kSequence};
      const char32_t c = Peek();
      if (c == '"') {
        for (++at_; Peek() != '"';) {
          Node one{Node::Kind::kChars};
          const char32_t character = Character();
          one.ranges.emplace_back(character, character);
          item.items.push_back(std::move(one));
        }
        ++at_;
      } else if (c == '[') {
        item.kind = Node::Kind::kChars;
        ++at_;
        if (Peek() == '^') item.negated = true, ++at_;
        while (Peek() != ']') {
          const char32_t first = Character();
          char32_t last = first;
          if (Peek() == '-' && Peek(1) != ']') ++at_, last = Character();
          item.ranges.emplace_back(first, last);
        }
        ++at_;
      } else if (c == '.') {
        item.kind = Node::Kind::kChars;
        item.negated = true;
        ++at_;
      } else if (c == '(') {
        ++at_;
        Skip(true);
        item = Alternatives(true);
        MR_CHECK(Peek() == ')');
        ++at_;
      } else if (InName(c)) {
        item.kind = Node::Kind::kRule;
        item.rule = Name();
      } else {
        return sequence;
      }
      Skip(nested);
      sequence.items.push_back(Repeated(std::move(item), nested));
    }
  }

  Node Repeated(Node item, bool nested) {
    while (true) {
      Node repeat{Node::Kind::kRepeat};
      const char32_t c = Peek();
      if (c == '*' || c == '+' || c == '?') {
        ++at_;
        repeat.min = c == '+' ? 1 : 0;
        if (c == '?') repeat.max = 1;
      } else if (c == '{') {
        ++at_;
        Skip(nested);
        repeat.min = Number();
        repeat.max = repeat.min;
        Skip(nested);
        if (Peek() == ',') {
          ++at_;
          Skip(nested);
          repeat.max.reset();
          if (Peek() != '}') repeat.max = Number();
          Skip(nested);
        }
        ++at_;
      } else {
        return item;
      }
      Skip(nested);
      repeat.items.push_back(std::move(item));
      item = std::move(repeat);
    }
  }

  // ---- The meaning ----

  static bool Fits(const Node& chars, char32_t c) {
    bool found = false;
    for (const auto& [first, last] : chars.ranges) found |= first <= c && c <= last;
    return found != chars.negated;
  }

  Places Ends(const Node& node, Places from) {
    Places out = 0;
    switch (node.kind) {
      case Node::Kind::kChars:
        for (size_t i = 0; i < input_.size(); ++i) {
          if ((from >> i & 1) != 0 && Fits(node, input_[i])) out |= Places{1} << (i + 1);
        }
        return out;
      case Node::Kind::kRule:
        for (size_t i = 0; i <= input_.size(); ++i) {
          if ((from >> i & 1) != 0) out |= ends_[{node.rule, i}];
        }
        return out;
      case Node::Kind::kSequence:
        for (const Node& item : node.items) from = Ends(item, from);
        return from;
      case Node::Kind::kChoice:
        for (const Node& item : node.items) out |= Ends(item, from);
        return out;
      case Node::Kind::kRepeat:
        for (int i = 0; i < node.min && from != 0; ++i) from = Ends(node.items[0], from);
        out = from;
        for (int i = node.min; from != 0 && (!node.max || i < *node.max); ++i) {
          // Places that were there before need not be gone on from again.
          from = Ends(node.items[0], from) & ~out;
          out |= from;
        }
        return out;
    }
    return out;
  }

  bool Draw(const Node& node, Rng& rng, int depth, std::u32string& out) {
    if (depth == 0 || --drawing_ < 0 || out.size() > 60) return false;
    switch (node.kind) {
      case Node::Kind::kChars: return DrawCharacter(node, rng, out);
      case Node::Kind::kRule: return Draw(rules_.at(node.rule), rng, depth - 1, out);
      case Node::Kind::kSequence:
        for (const Node& item : node.items) {
          if (!Draw(item, rng, depth, out)) return false;
        }
        return true;
      case Node::Kind::kChoice: {
        const size_t size = out.size();
        for (int i = 0; i < 4; ++i) {
          const auto pick = static_cast<size_t>(rng.Between(0, std::ssize(node.items) - 1));
          if (Draw(node.items[pick], rng, depth, out)) return true;
          out.resize(size);
        }
        return false;
      }
      case Node::Kind::kRepeat: {
        const int most = node.max ? std::min(*node.max, node.min + 3) : node.min + 3;
        for (auto left = rng.Between(node.min, most); left > 0; --left) {
          if (!Draw(node.items[0], rng, depth, out)) return false;
        }
        return true;
      }
    }
    return false;
  }

  static bool DrawCharacter(const Node& chars, Rng& rng, std::u32string& out) {
    for (int i = 0; i < 40; ++i) {
      char32_t c = static_cast<char32_t>(rng.Between(0x20, 0x7E));
      if (chars.negated && i % 4 == 0) c = static_cast<char32_t>(rng.Between(0, 0x2FFF));
      if (!chars.negated) {
        const auto [first, last] =
            chars.ranges[static_cast<size_t>(rng.Between(0, std::ssize(chars.ranges) - 1))];
        c = static_cast<char32_t>(rng.Between(first, last));
      }
      if ((c >= 0xD800 && c <= 0xDFFF) || !Fits(chars, c)) continue;
      out.push_back(c);
      return true;
    }
    return false;
  }

  static void Mention(const Node& node, std::u32string& out) {
    for (const auto& [first, last] : node.ranges) {
      for (const char32_t c : {first, last, static_cast<char32_t>(last + 1)}) {
        if (c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF)) out.push_back(c);
      }
    }
    for (const Node& item : node.items) Mention(item, out);
  }

  std::u32string text_;
  size_t at_ = 0;
  std::map<std::u32string, Node> rules_;
  int drawing_ = 0;  // steps that are left
  std::u32string input_;
  // Where a rule that begins at a place can end, as far as it is known.
  std::map<std::pair<std::u32string, size_t>, Places> ends_;
};

}  // namespace millrace::text
