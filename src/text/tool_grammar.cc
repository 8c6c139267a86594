#include "text/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/output_grammar.h"

namespace millrace::text {
namespace {

std::string Quoted(std::string_view text) {
  return OrderedJson(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The schema of a tool's arguments. What the schema language has and the grammar cannot express is
// ignored, unless the tool is strict.
OrderedJson ArgumentsOf(const OrderedJson& function) {
  OrderedJson schema = {{"type", "object"}};
  if (function.contains("parameters") && function["parameters"].is_object() &&
      !function["parameters"].empty()) {
    schema = function["parameters"];
  }
  // Arguments are an object, also where the schema does not say so or admits more.
  const OrderedJson type = schema.value("type", OrderedJson());
  const auto object = OrderedJson("object");
  if (type.is_null() || (type.is_array() && std::ranges::find(type, object) != type.end())) {
    schema["type"] = object;
  }
  const bool strict = function.contains("strict") && function["strict"] == OrderedJson(true);
  OrderedJson& options = schema["x-guidance"] = OrderedJson::object();
  if (!strict) options["lenient"] = true;
  options["whitespace_pattern"] = kJsonWhiteSpace;
  return schema;
}

// The text of a call around its arguments.
struct Around {
  std::string before, after;
};
Around AroundOf(const ToolFormat& f, const std::string& name) {
  if (f.syntax == CallSyntax::kNameThenJson) {
    if (f.ids == CallIds::kNumbered) return {fmt::format("{}{}:", f.name_begin, name), ""};
    return {name, ""};
  }
  return {fmt::format("{{\"name\": {}, \"{}\": ", Quoted(name), f.arguments_key), "}"};
}

// A grammar cannot count: the numbers of calls after the first one are the model's.
constexpr std::string_view kFurtherNumber = "/[1-9][0-9]{0,3}/";

bool OneSectionPerCall(const ToolFormat& f) { return f.call_begin.empty() && !f.call_end.empty(); }

class Writer {
 public:
  Writer(const ToolFormat& format, const SpecialTokenId& special)
      : format_(format), special_(special) {}

  std::string Grammar(const OrderedJson& tools, const CallsWanted& wanted) {
    std::string first, others, rules;
    const bool numbered = format_.ids == CallIds::kNumbered;
    for (size_t i = 0; i < tools.size(); ++i) {
      const OrderedJson& function = tools[i]["function"];
      const auto name = function["name"].get<std::string>();
      const char* const or_else = i > 0 ? " | " : "";
      others += fmt::format("{}call_{}", or_else, i);
      if (numbered) {
        first += fmt::format("{}first_{}", or_else, i);
        rules +=
            fmt::format("first_{}: {}\n", i, Call(name, i, Quoted(std::to_string(wanted.first))));
      }
      rules += fmt::format("call_{}: {}\narguments_{}: %json {}\n", i,
                           Call(name, i, numbered ? kFurtherNumber : ""), i,
                           ArgumentsOf(function).dump());
    }
    if (numbered) rules += fmt::format("first: {}\n", first);
    return fmt::format("start: {}\ncall: {}\n{}", Start(numbered ? "first" : "call", wanted.many),
                       others, rules);
  }

 private:
  std::string Marker(std::string_view text) const {
    if (text.empty()) return "";
    const auto id = special_(text);
    return id ? fmt::format("<[{}]>", *id) : Quoted(text);
  }

  // `first`: the rule of the first call.
  std::string Start(std::string_view first, bool many) const {
    const ToolFormat& f = format_;
    const std::string more = !many ? ""
                             : f.separator.empty()
                                 ? " call*"
                                 : fmt::format(" ({} call)*", Quoted(f.separator));
    if (OneSectionPerCall(f)) return std::string(first) + more;
    const bool list = f.syntax == CallSyntax::kJson && f.arguments_key == "arguments";
    return fmt::format("{} {} {}{} {} {}", Marker(f.section_begin), list ? "\"[\"" : "", first,
                       more, list ? "\"]\"" : "", Marker(f.section_end));
  }

  std::string Call(const std::string& name, size_t i, std::string_view number) const {
    const ToolFormat& f = format_;
    const auto [before, after] = AroundOf(f, name);
    const std::string arguments =
        fmt::format("{} {} {} arguments_{} {}", Quoted(before), number, Marker(NameEnd()), i,
                    after.empty() ? "" : Quoted(after));
    if (OneSectionPerCall(f)) {
      return fmt::format("{} \"\\n\" {} \"\\n\" {}", Marker(f.section_begin), arguments,
                         Marker(f.call_end));
    }
    return fmt::format("{} {} {}", Marker(f.call_begin), arguments, Marker(f.call_end));
  }

  std::string_view NameEnd() const {
    return format_.syntax == CallSyntax::kNameThenJson ? format_.name_end : std::string_view();
  }

  const ToolFormat& format_;
  const SpecialTokenId& special_;
};

}  // namespace

bool HasCallGrammar(const ToolFormat& format) {
  return format.syntax == CallSyntax::kJson || format.syntax == CallSyntax::kNameThenJson;
}

std::string CallGrammar(const ToolFormat& format, const OrderedJson& tools,
                        const CallsWanted& wanted, const SpecialTokenId& special) {
  return GrammarOf(GrammarKind::kLark, Writer(format, special).Grammar(tools, wanted));
}

std::optional<std::string> FreeCallGrammar(const ToolFormat& format, const OrderedJson& tools) {
  if (format.syntax != CallSyntax::kJson || !OneSectionPerCall(format)) return std::nullopt;
  OrderedJson structures = OrderedJson::array();
  for (const OrderedJson& tool : tools) {
    const OrderedJson& function = tool["function"];
    const auto [before, after] = AroundOf(format, function["name"].get<std::string>());
    structures.push_back({{"begin", fmt::format("{}\n{}", format.section_begin, before)},
                          {"schema", ArgumentsOf(function)},
                          {"end", fmt::format("{}\n{}", after, format.call_end)}});
  }
  const OrderedJson tags = {{"structures", std::move(structures)},
                            {"triggers", {std::string(format.section_begin)}}};
  return GrammarOf(GrammarKind::kTags, tags.dump());
}

}  // namespace millrace::text
