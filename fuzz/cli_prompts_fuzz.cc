// The prompt file of `generate`: every body it produces must be valid JSON.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "apps/common/prompt_file.h"
#include "base/check.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  const auto items =
      apps::ParsePrompts({reinterpret_cast<const char*>(data), size}, R"({"max_tokens":5})");
  if (!items.ok()) return 0;
  std::unordered_set<std::string> ids;
  for (const apps::PromptItem& item : *items) {
    MR_CHECK(ids.insert(item.id).second) << item.id;
    MR_CHECK(ParseJson(item.body).ok()) << item.body;
  }
  return 0;
}
