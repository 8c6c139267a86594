#include "text/call_syntax.h"

#include <algorithm>
#include <utility>

namespace millrace::text {

size_t Settled(std::string_view text, std::string_view token) {
  for (size_t size = std::min(text.size(), token.size() - 1); size > 0; --size) {
    if (token.starts_with(text.substr(text.size() - size))) return text.size() - size;
  }
  return text.size();
}

namespace {

using Step = JsonScanner::Step;

bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

bool IsBareName(std::string_view name) {
  return !name.empty() && name.size() <= kCallNameBytesMax &&
         std::ranges::none_of(name, [](char c) {
           return static_cast<unsigned char>(c) <= ' ' ||
                  std::string_view("<>{}[]()\"'`,;=").find(c) != std::string_view::npos;
         });
}

Step CallObject::Take(char c, std::string& arguments) {
  switch (at_) {
    case At::kBegin: at_ = At::kKey; return c == '{' ? Step::kMore : Step::kBad;
    case At::kKey:
      if (IsBlank(c)) return Step::kMore;
      if (c == '}' && name_) return End(arguments);  // after a comma
      at_ = At::kInKey;
      key_.clear();
      return c == '"' ? Step::kMore : Step::kBad;
    case At::kInKey: return TakeInKey(c);
    case At::kColon:
      if (IsBlank(c)) return Step::kMore;
      at_ = At::kValue;
      value_.clear();
      value_begun_ = false;
      scanner_ = JsonScanner();
      return c == ':' ? Step::kMore : Step::kBad;
    case At::kValue: return TakeInValue(c, arguments);
    case At::kAfterValue: return TakeAfterValue(c, arguments);
  }
  return Step::kBad;
}

Step CallObject::TakeInKey(char c) {
  if (c == '"' && !key_escaped_) {
    at_ = At::kColon;
    return Step::kMore;
  }
  key_escaped_ = c == '\\' && !key_escaped_;
  key_ += c;
  return Step::kMore;
}

// Whether the value may be what its key says.
bool CallObject::BeginValue(char c) {
  value_begun_ = true;
  if (key_ == "name") return c == '"' && !name_;
  of_arguments_ = (key_ == "arguments" || key_ == "parameters") && arguments_ == Arguments::kNone;
  if (!of_arguments_) return true;
  arguments_ = c == '{' ? Arguments::kObject : c == '"' ? Arguments::kQuoted : Arguments::kNull;
  return c == '{' || c == '"' || c == 'n' || c == 'N';
}

Step CallObject::TakeInValue(char c, std::string& arguments) {
  if (!value_begun_) {
    if (IsBlank(c)) return Step::kMore;
    of_arguments_ = false;
    if (!BeginValue(c)) return Step::kBad;
  }
  const bool object = of_arguments_ && arguments_ == Arguments::kObject;
  std::string written;
  const Step step = scanner_.Take(c, written);
  if (step == Step::kBad) return step;
  if (!object) {
    value_ += written;
  } else {
    (begun_ ? arguments : kept_) += written;
    if (!IsBlank(c) && ++object_chars_ == 2) {
      confirmed_ = true;
      BeginIfKnown(arguments);
    }
  }
  if (step == Step::kMore) return step;
  const Step ended = EndValue(arguments);
  if (ended == Step::kBad || step == Step::kDone) return ended;
  return TakeAfterValue(c, arguments);
}

void CallObject::BeginIfKnown(std::string& arguments) {
  if (begun_ || !name_ || !confirmed_) return;
  begun_ = true;
  arguments += std::exchange(kept_, {});
}

Step CallObject::EndValue(std::string& arguments) {
  at_ = At::kAfterValue;
  if (key_ == "name") {
    const OrderedJson name = OrderedJson::parse(value_, nullptr, false);
    if (!name.is_string() || name.get_ref<const std::string&>().empty() ||
        name.get_ref<const std::string&>().size() > kCallNameBytesMax) {
      return Step::kBad;
    }
    name_ = name.get<std::string>();
  } else if (of_arguments_) {
    whole_ = true;
    if (arguments_ == Arguments::kQuoted) {
      const OrderedJson text = OrderedJson::parse(value_, nullptr, false);
      const auto object =
          text.is_string() ? MendedObject(text.get_ref<const std::string&>()) : std::nullopt;
      if (!object) return Step::kBad;
      kept_ = *object;
      confirmed_ = true;
    } else if (arguments_ == Arguments::kNull) {
      if (value_ != "null") return Step::kBad;
      kept_ = "{}";
      confirmed_ = true;
    }
  }
  BeginIfKnown(arguments);
  return Step::kMore;
}

Step CallObject::TakeAfterValue(char c, std::string& arguments) {
  if (IsBlank(c)) return Step::kMore;
  if (c == ',') {
    at_ = At::kKey;
    return Step::kMore;
  }
  return c == '}' && name_ ? End(arguments) : Step::kBad;
}

Step CallObject::End(std::string& arguments) {
  if (arguments_ == Arguments::kNone) {
    kept_ = "{}";
    confirmed_ = whole_ = true;
  }
  BeginIfKnown(arguments);
  return Step::kDone;
}

}  // namespace millrace::text
