// An untrusted chat template compiles and renders within its limits, or gives a Status.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::text;
  TokenizerConfig config;
  config.bos_token = "<s>";
  config.chat_templates[kDefaultTemplateName] =
      std::string(reinterpret_cast<const char*>(data), size);
  const ChatTemplateLimits limits{.output_bytes = 1 << 20, .fuel = 20'000, .work_bytes = 1 << 20};
  auto chat_template = ChatTemplate::FromConfig(config, {"<s>"}, ContentFormat::kAuto, limits);
  if (!chat_template.ok()) return 0;
  auto text =
      (*chat_template)
          ->Render({
              .messages_json =
                  R"([{"role":"user","content":"Hi <s>"},{"role":"assistant","content":""}])",
              .tools_json = R"([{"type":"function","function":{"name":"f"}}])",
          });
  if (text.ok()) {
    MR_CHECK(text->size() <= limits.output_bytes);
    MR_CHECK(IsValidUtf8(*text));
  }
  return 0;
}
