// Bodies of multipart/form-data (RFC 7578): forms with files, as clients upload them. Pure
// functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/request/request.h"

namespace millrace::serve {

inline constexpr size_t kFormFieldsMax = 16;

struct FormField {
  std::string name;
  std::string filename;      // empty: the field is no file
  std::string_view content;  // refers to the body
};

// True if the header names this type, in whatever spelling.
bool IsMultipart(std::string_view content_type);
// `content_type` is the header, with the boundary. An error says what is wrong with the body.
Parsed<std::vector<FormField>> ParseMultipart(std::string_view content_type, std::string_view body);

}  // namespace millrace::serve
