#include "serve/stored/multipart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

namespace millrace::serve {
namespace {

constexpr std::string_view kType = "multipart/form-data";
constexpr size_t kBoundaryBytesMax = 70;  // RFC 2046
constexpr size_t kPartHeadBytesMax = 8192;
constexpr std::string_view kLineEnd = "\r\n";

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

ApiError BadForm(std::string why) {
  return BadField("body", "The form (multipart/form-data) is malformed: " + std::move(why));
}

// The value of `name=value` or `name="value"` among the parameters of a header.
std::optional<std::string> Parameter(std::string_view header, std::string_view name) {
  for (size_t at = header.find(';'); at != std::string_view::npos;) {
    size_t begin = header.find_first_not_of("; \t", at);
    if (begin == std::string_view::npos) return std::nullopt;
    const size_t equals = header.find('=', begin);
    if (equals == std::string_view::npos) return std::nullopt;
    const bool wanted = Lower(header.substr(begin, equals - begin)) == name;
    std::string value;
    size_t end = equals + 1;
    if (end < header.size() && header[end] == '"') {
      for (++end; end < header.size() && header[end] != '"'; ++end) {
        if (header[end] == '\\' && end + 1 < header.size()) ++end;
        value += header[end];
      }
      if (end == header.size()) return std::nullopt;
    } else {
      const size_t stop = std::min(header.find(';', end), header.size());
      value = std::string(header.substr(end, stop - end));
      value.erase(value.find_last_not_of(" \t") + 1);
      end = stop;
    }
    if (wanted) return value;
    at = header.find(';', end);
  }
  return std::nullopt;
}

// Reads name and filename of a part's headers.
std::optional<ApiError> ReadHead(std::string_view head, FormField& field) {
  bool named = false;
  while (!head.empty()) {
    const size_t end = std::min(head.find(kLineEnd), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(head.size(), end + kLineEnd.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return BadForm("a part has a header without a colon");
    if (Lower(line.substr(0, colon)) != "content-disposition") continue;
    const std::string_view disposition = line.substr(colon + 1);
    const auto name = Parameter(disposition, "name");
    if (!name || name->empty()) return BadForm("a part has no name");
    named = true;
    field.name = *name;
    field.filename = Parameter(disposition, "filename").value_or("");
  }
  if (!named) return BadForm("a part has no Content-Disposition header");
  return std::nullopt;
}

}  // namespace

bool IsMultipart(std::string_view content_type) {
  return Lower(content_type.substr(0, content_type.find_first_of("; \t"))) == kType;
}

Parsed<std::vector<FormField>> ParseMultipart(std::string_view content_type,
                                              std::string_view body) {
  const auto boundary = Parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kBoundaryBytesMax) {
    return BadForm("the header Content-Type has no boundary");
  }
  const std::string delimiter = "--" + *boundary;
  std::vector<FormField> fields;
  size_t at = body.starts_with(delimiter) ? 0 : body.find("\r\n" + delimiter);
  if (at == std::string_view::npos) return BadForm("it does not have the boundary of its header");
  if (at > 0) at += kLineEnd.size();
  while (true) {
    at += delimiter.size();
    if (body.substr(at, 2) == "--") return fields;
    const size_t begin = body.find(kLineEnd, at);  // spaces may follow the boundary
    if (begin == std::string_view::npos) return BadForm("it ends within a part");
    const size_t head = begin + kLineEnd.size();
    const size_t head_end = body.find("\r\n\r\n", begin);
    if (head_end == std::string_view::npos) return BadForm("it ends within a part's headers");
    if (head_end > head + kPartHeadBytesMax) return BadForm("a part has too long headers");
    const size_t content = head_end + 4;
    const size_t end = body.find("\r\n" + delimiter, head_end + 2);
    if (end == std::string_view::npos) return BadForm("it ends within a part");
    if (fields.size() == kFormFieldsMax) {
      return BadForm(fmt::format("it has more than {} parts", kFormFieldsMax));
    }
    FormField& field = fields.emplace_back();
    const size_t head_bytes = head_end > head ? head_end - head : 0;
    if (auto error = ReadHead(body.substr(head, head_bytes), field)) return std::move(*error);
    field.content = end > content ? body.substr(content, end - content) : "";
    at = end + kLineEnd.size();
  }
}

}  // namespace millrace::serve
