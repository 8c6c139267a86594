// ChatTemplate: a model folder's Jinja templates, rendered as Hugging Face transformers renders
// them. A template is data from outside: it can reach no file, clock or host object, and its
// instructions, nesting, memory and output are bounded, so that a hostile one ends with a Status.
//
// Immutable after Load; any thread, several at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/content_format.h"
#include "text/special_guard.h"
#include "text/tokenizer_config.h"

struct MrtTemplate;

namespace millrace::text {

struct ChatTemplateLimits {
  size_t source_bytes = kChatTemplateBytesMax;
  size_t output_bytes = 32u << 20;
  uint64_t fuel = 2'000'000;  // instructions of one render
  size_t recursion = 200;
  size_t work_bytes = 128u << 20;  // that expressions of one render may read and build
};

// One render. JSON travels as text, because templates print objects in the order the client wrote
// their keys.
struct ChatInput {
  // An array. The content of each message is null, a string or a list of text parts, and reaches
  // the template in the form that it wants (content_format.h).
  std::string_view messages_json;
  std::string_view tools_json;               // an array; empty: no tools
  std::string_view kwargs_json;              // an object of further variables; empty: none
  std::optional<std::string> template_name;  // none: "tool_use" when there are tools and it
                                             // exists, else "default"
  bool add_generation_prompt = true;
  // Special tokens that messages, tools and kwargs spell stay plain text (special_guard.h).
  bool guard_special_tokens = true;
  // Local wall clock, seconds since 1970-01-01 00:00 local time, for strftime_now.
  int64_t civil_seconds = 0;
};

class ChatTemplate {
 public:
  // Compiles every template of the folder. kNotFound when the folder has none; kInvalidArgument
  // with file, line and cause for one that does not parse, nests too deep to be parsed safely, or
  // holds too large constants. `special_tokens` (of the tokenizer) are
  // guarded when they occur in messages, tools or kwargs: see EncodeOptions::guarded.
  static Result<std::unique_ptr<const ChatTemplate>> Load(
      const std::string& folder, const std::vector<std::string>& special_tokens,
      ContentFormat format = ContentFormat::kAuto, const ChatTemplateLimits& limits = {});
  static Result<std::unique_ptr<const ChatTemplate>> FromConfig(
      const TokenizerConfig& config, const std::vector<std::string>& special_tokens,
      ContentFormat format = ContentFormat::kAuto, const ChatTemplateLimits& limits = {});

  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

  // Another template, for one request, with the same tokens and limits. Errors as of Load.
  Result<std::unique_ptr<const ChatTemplate>> WithSource(const std::string& source) const;

  // The source of the template that is used without tools, and of that with tools. By them the
  // model's family is known (tool_format.h). The first is empty if every template has a name.
  const std::string& source() const;
  const std::string& tool_source() const;
  // The sources of all, one after another: what any of them may show is named in here.
  const std::string& all_sources() const { return all_sources_; }
  // Every template, by its name.
  std::map<std::string, std::string> sources() const;
  bool Has(const std::string& name) const { return templates_.contains(name); }
  // Whether there is one for a request that names none.
  bool HasTemplateFor(const ChatInput& input) const { return Find(input).ok(); }

  // The prompt, to be encoded with {add_special_tokens = false, parse_special = true,
  // guarded = true}. kInvalidArgument for input that is not JSON of the right type, for a template
  // that refuses it (raise_exception), and for one that exceeds a limit.
  Result<std::string> Render(const ChatInput& input) const;

 private:
  struct Deleter {
    void operator()(MrtTemplate* handle) const;
  };

  struct Named {
    std::unique_ptr<MrtTemplate, Deleter> handle;
    std::string source;
    ContentForms forms;
  };

  ChatTemplate() = default;
  Status Add(const std::string& name, const std::string& source);
  Result<const Named*> Find(const ChatInput& input) const;
  Result<std::string> Probe(const Named& named, const nlohmann::ordered_json& messages,
                            bool* exceeded) const;
  // `exceeded` tells whether a limit stopped it.
  Result<std::string> Run(const Named& named, const std::string& context, bool has_twins,
                          int64_t civil_seconds, bool* exceeded = nullptr) const;

  std::map<std::string, Named> templates_;
  std::string all_sources_;
  ContentFormat format_ = ContentFormat::kAuto;
  std::string token_variables_;  // "bos_token":"<s>",... as JSON members
  std::shared_ptr<const SpecialGuard> guard_;
  ChatTemplateLimits limits_;
};

}  // namespace millrace::text
