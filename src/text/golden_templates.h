// Renders every row of a golden.jsonl folder and compares. For tests only; one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace millrace::text {

// 2026-01-02 03:04:05, the clock of the golden rows.
inline constexpr int64_t kGoldenClock = 1'767'323'045;

inline std::unique_ptr<const ChatTemplate> LoadGoldenTemplate(const std::string& folder,
                                                              const std::string& name,
                                                              const Json& vars) {
  TokenizerConfig config;
  config.bos_token = vars["bos_token"].get<std::string>();
  config.eos_token = vars["eos_token"].get<std::string>();
  config.unk_token = vars["unk_token"].get<std::string>();
  config.pad_token = vars["pad_token"].get<std::string>();
  config.chat_templates[kDefaultTemplateName] =
      ReadFile(folder + "/templates/" + name, kChatTemplateBytesMax).value();
  return ChatTemplate::FromConfig(config, {}).value();
}

// The number of rows compared.
inline int CompareGoldenTemplates(const std::string& folder) {
  using Ordered = nlohmann::ordered_json;
  const Ordered dialogs = Ordered::parse(ReadFile(folder + "/dialogs.json", 1 << 20).value());
  std::istringstream lines(ReadFile(folder + "/golden.jsonl", 16 << 20).value());
  std::string line;
  std::string loaded_name;
  std::unique_ptr<const ChatTemplate> chat_template;
  int rows = 0;
  while (std::getline(lines, line)) {
    const Json row = ParseJson(line).value();
    const std::string name = row["template"];
    const std::string dialog = row["dialog"];
    if (name != loaded_name) {
      chat_template = LoadGoldenTemplate(folder, name, Json::parse(dialogs["vars"].dump()));
      loaded_name = name;
    }
    const std::string messages = dialogs["dialogs"][dialog].dump();
    const std::string tools = dialogs["tools"].dump();
    ChatInput input;
    input.messages_json = messages;
    if (dialog == "tool" || dialog == "toolcall") input.tools_json = tools;
    input.add_generation_prompt = row["gen"];
    input.civil_seconds = kGoldenClock;
    Result<std::string> rendered = chat_template->Render(input);
    const std::string where = name + " " + dialog + (row["gen"] ? " gen" : "");
    if (row["ok"]) {
      EXPECT_TRUE(rendered.ok()) << where << ": " << rendered.status().ToString();
      EXPECT_EQ(rendered.ok() ? *rendered : "", row["out"].get<std::string>()) << where;
    } else {
      EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument) << where;
    }
    ++rows;
  }
  return rows;
}

}  // namespace millrace::text
