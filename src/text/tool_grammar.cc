#include "text/tool_grammar.h"

#include <fmt/format.h>

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
  const bool strict = function.contains("strict") && function["strict"] == OrderedJson(true);
  OrderedJson& options = schema["x-guidance"];
  if (!options.is_object()) options = OrderedJson::object();
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
    // Kimi numbers its calls; the number has no meaning here.
    if (f.name_begin == "functions.") return {fmt::format("functions.{}:0", name), ""};
    return {name, ""};
  }
  return {fmt::format("{{\"name\": {}, \"{}\": ", Quoted(name), f.arguments_key), "}"};
}

bool OneSectionPerCall(const ToolFormat& f) { return f.call_begin.empty() && !f.call_end.empty(); }

class Writer {
 public:
  Writer(const ToolFormat& format, const SpecialTokenId& special)
      : format_(format), special_(special) {}

  std::string Grammar(const OrderedJson& tools, bool many) {
    std::string names, rules;
    for (size_t i = 0; i < tools.size(); ++i) {
      const OrderedJson& function = tools[i]["function"];
      names += fmt::format("{}call_{}", i > 0 ? " | " : "", i);
      rules += fmt::format("call_{}: {}\narguments_{}: %json {}\n", i,
                           Call(function["name"].get<std::string>(), i), i,
                           ArgumentsOf(function).dump());
    }
    return fmt::format("start: {}\ncall: {}\n{}", Start(many), names, rules);
  }

 private:
  std::string Marker(std::string_view text) const {
    if (text.empty()) return "";
    const auto id = special_(text);
    return id ? fmt::format("<[{}]>", *id) : Quoted(text);
  }

  std::string Start(bool many) const {
    const ToolFormat& f = format_;
    const std::string more = !many ? ""
                             : f.separator.empty()
                                 ? " call*"
                                 : fmt::format(" ({} call)*", Quoted(f.separator));
    if (OneSectionPerCall(f)) return "call" + more;
    const bool list = f.syntax == CallSyntax::kJson && f.arguments_key == "arguments";
    return fmt::format("{} {} call{} {} {}", Marker(f.section_begin), list ? "\"[\"" : "", more,
                       list ? "\"]\"" : "", Marker(f.section_end));
  }

  std::string Call(const std::string& name, size_t i) const {
    const ToolFormat& f = format_;
    const auto [before, after] = AroundOf(f, name);
    const std::string arguments =
        fmt::format("{} {} arguments_{} {}", Quoted(before), Marker(NameEnd()), i,
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

std::string CallGrammar(const ToolFormat& format, const OrderedJson& tools, bool many,
                        const SpecialTokenId& special) {
  return GrammarOf(GrammarKind::kLark, Writer(format, special).Grammar(tools, many));
}

std::optional<std::string> FreeCallGrammar(const ToolFormat& format, const OrderedJson& tools,
                                           const SpecialTokenId& special) {
  const bool textual = format.syntax == CallSyntax::kJson && OneSectionPerCall(format) &&
                       !special(format.section_begin) && !special(format.call_end);
  if (!textual) return std::nullopt;
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
