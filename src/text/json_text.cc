#include "text/json_text.h"

namespace millrace::text {
namespace {

// Writes what it is told.
class CompactWriter : public nlohmann::json_sax<OrderedJson> {
 public:
  bool null() override { return Add("null"); }
  bool boolean(bool value) override { return Add(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Add(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& digits) override { return Add(digits); }
  bool string(string_t& value) override { return Add(JsonString(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open('{'); }
  bool key(string_t& name) override {
    Separate();
    text_ += JsonString(name) + ":";
    first_ = true;
    return true;
  }
  bool end_object() override { return Close('}'); }
  bool start_array(std::size_t) override { return Open('['); }
  bool end_array() override { return Close(']'); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  std::string text() const { return text_; }

 private:
  void Separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  bool Add(const std::string& value) {
    Separate();
    text_ += value;
    return true;
  }
  bool Open(char bracket) {
    Separate();
    text_ += bracket;
    first_ = true;
    return true;
  }
  bool Close(char bracket) {
    text_ += bracket;
    first_ = false;
    return true;
  }

  std::string text_;
  bool first_ = true;  // nothing to separate the next value from
};

bool SkipDigits(std::string_view& text) {
  const size_t end = text.find_first_not_of("0123456789");
  const size_t size = end == std::string_view::npos ? text.size() : end;
  text.remove_prefix(size);
  return size > 0;
}

}  // namespace

std::string JsonString(std::string_view text) {
  return OrderedJson(std::string(text)).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

bool IsJsonNumber(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool zero = text.starts_with('0');
  const size_t before = text.size();
  if (!SkipDigits(text) || (zero && before - text.size() > 1)) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!SkipDigits(text)) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (!SkipDigits(text)) return false;
  }
  return text.empty();
}

std::optional<std::string> CompactJson(std::string_view text) {
  CompactWriter writer;
  if (!OrderedJson::sax_parse(text, &writer)) return std::nullopt;
  return writer.text();
}

void JsonObjectWriter::Set(const std::string& key, std::string value_json) {
  const auto [place, added] = places_.emplace(key, members_.size());
  if (added) {
    members_.emplace_back(key, std::move(value_json));
  } else {
    members_[place->second].second = std::move(value_json);
  }
}

std::string JsonObjectWriter::Open() const {
  std::string text = "{";
  for (const auto& [key, value] : members_) {
    if (text.size() > 1) text += ',';
    text += JsonString(key) + ":" + value;
  }
  return text;
}

}  // namespace millrace::text
