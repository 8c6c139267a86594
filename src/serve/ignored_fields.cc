#include "serve/ignored_fields.h"

#include <algorithm>
#include <cctype>

namespace millrace::serve {
namespace {

bool NameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
         c == '[' || c == ']';
}

std::string HeaderSafe(std::string name) {
  if (name.size() > kIgnoredNameBytesMax) name.resize(kIgnoredNameBytesMax);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !NameCharacter(c); }, '?');
  return name;
}

}  // namespace

void IgnoreKnownFields(FieldReader& reader) {
  // Fields for the bookkeeping of OpenAI's own service.
  reader.Ignore("user");
  reader.Ignore("safety_identifier");
  reader.Ignore("metadata", Json::object());
  reader.Ignore("store", false);
  reader.Ignore("service_tier", "auto");
  reader.Ignore("prompt_cache_retention");
  // Fields of vLLM.
  reader.Ignore("spaces_between_special_tokens", true);
  reader.Ignore("return_prompt_text", false);
  reader.Ignore("return_token_offsets", false);
  reader.Ignore("kv_transfer_params");
  reader.Ignore("vllm_xargs", Json::object());
}

void IgnoreKnownChatFields(FieldReader& reader) {
  reader.Ignore("verbosity", "medium");
  reader.Ignore("prediction");
  reader.Ignore("media_io_kwargs", Json::object());
  reader.Ignore("mm_processor_kwargs", Json::object());
}

std::string IgnoredHeaderValue(const FieldReader& reader) {
  std::vector<std::string> names = reader.IgnoredFields(kIgnoredNamesMax + 1);
  std::ranges::sort(names);
  std::string value;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) value += ", ";
    value += i < kIgnoredNamesMax ? HeaderSafe(names[i]) : "...";
  }
  return value;
}

}  // namespace millrace::serve
