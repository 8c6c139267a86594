#include "serve/ollama_api.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "serve/limits.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kLatest = ":latest";

// ollama's options and the fields of a chat request.
constexpr std::pair<const char*, const char*> kOptions[] = {
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"num_predict", "max_tokens"},
    {"seed", "seed"},
    {"stop", "stop"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"}};

class OllamaTranslation : public ChatTranslation {
 public:
  OllamaTranslation(const Json& json, std::string_view body, OllamaRoute route)
      : ChatTranslation(json, body), route_(route) {}

 private:
  void Read() override {
    std::string model;
    reader_.String("model", kNameBytesMax, model);
    if (!model.empty()) chat_["model"] = WithoutLatest(model);
    bool stream = true;
    reader_.Bool("stream", stream);
    chat_["stream"] = stream;
    AskForUsage();
    chat_["messages"] = OrderedJson::array();
    if (route_ == OllamaRoute::kChat) {
      ReadMessages();
    } else {
      ReadPrompt();
    }
    Copy("tools");
    ReadFormat();
    ReadThink();
    ReadOptions();
    reader_.Ignore("keep_alive");
  }

  void ReadMessages() {
    const OrderedJson messages = Take("messages");
    if (!messages.is_array() || messages.empty()) {
      return reader_.Fail("messages", "messages must be a list of at least one message");
    }
    for (OrderedJson message : messages) {
      if (!message.is_object()) return reader_.Fail("messages", "each message must be an object");
      if (message.contains("images") && !message["images"].empty()) return RefuseImages("messages");
      // Arguments of calls are objects here, and text there.
      if (message.contains("tool_calls") && message["tool_calls"].is_array()) {
        for (OrderedJson& call : message["tool_calls"]) {
          if (!call.is_object() || !call["function"].is_object()) {
            return reader_.Fail("messages", "each tool call must be an object with a function");
          }
          OrderedJson& arguments = call["function"]["arguments"];
          if (arguments.is_object()) arguments = OrderedJson(arguments.dump());
        }
      }
      chat_["messages"].push_back(std::move(message));
    }
  }

  void ReadPrompt() {
    reader_.Unsupported("raw", "use /v1/completions");
    reader_.Unsupported("suffix", "put the whole text into the prompt");
    reader_.Unsupported("context", "send the conversation to /api/chat");
    if (!Take("images").empty()) return RefuseImages("images");
    std::string system, prompt;
    reader_.String("system", kAnyTextBytes, system);
    reader_.String("prompt", kAnyTextBytes, prompt);
    if (!system.empty()) chat_["messages"].push_back({{"role", "system"}, {"content", system}});
    if (prompt.empty()) return reader_.Fail("prompt", "prompt is required");
    chat_["messages"].push_back({{"role", "user"}, {"content", prompt}});
  }

  void RefuseImages(const char* field) {
    reader_.Fail(UnsupportedField(field, std::string(field) + ": images are not supported"));
  }

  void ReadFormat() {
    const OrderedJson format = Take("format");
    if (format.is_null() || format == OrderedJson("")) return;
    if (format == OrderedJson("json")) {
      chat_["response_format"] = {{"type", "json_object"}};
    } else if (format.is_object()) {
      chat_["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"name", "format"}, {"schema", format}}}};
    } else {
      reader_.Fail("format", "format must be \"json\" or a JSON schema");
    }
  }

  void ReadThink() {
    const OrderedJson think = Take("think");
    if (think.is_boolean()) chat_["chat_template_kwargs"] = {{"enable_thinking", think}};
    if (think.is_string()) chat_["reasoning_effort"] = think;
  }

  void ReadOptions() {
    const OrderedJson options = Take("options");
    if (options.is_null()) return;
    if (!options.is_object()) return reader_.Fail("options", "options must be an object");
    for (const auto& [name, value] : options.items()) {
      const auto known =
          std::ranges::find(kOptions, name, &std::pair<const char*, const char*>::first);
      if (known == std::end(kOptions)) {
        reader_.AddIgnored(("options." + name).c_str());
      } else if (name != "num_predict" || value.is_number_unsigned()) {  // -1: no limit
        chat_[known->second] = value;
      }
    }
  }

  const OllamaRoute route_;
};

class OllamaEmbedTranslation : public ChatTranslation {
 public:
  OllamaEmbedTranslation(const Json& json, std::string_view body, OllamaEmbedRoute route)
      : ChatTranslation(json, body), route_(route) {}

 private:
  void Read() override {
    std::string model;
    reader_.String("model", kNameBytesMax, model);
    if (!model.empty()) chat_["model"] = WithoutLatest(model);
    if (route_ == OllamaEmbedRoute::kEmbed) {
      Copy("input");
    } else {
      std::string prompt;
      reader_.String("prompt", kAnyTextBytes, prompt);
      chat_["input"] = prompt;
    }
    Copy("dimensions");
    bool truncate = true;
    reader_.Bool("truncate", truncate);
    if (truncate) {  // the end is cut off
      chat_["truncate_prompt_tokens"] = -1;
      chat_["truncation_side"] = "right";
    }
    reader_.Ignore("options", Json::object());
    reader_.Ignore("keep_alive");
  }

  const OllamaEmbedRoute route_;
};

std::string TimeText(const Json& answer) {
  const auto seconds = static_cast<std::time_t>(answer.value("created", int64_t{0}));
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

// Calls with their arguments as objects.
Json OllamaCalls(const Json& calls) {
  Json list = Json::array();
  for (const Json& call : calls) {
    const Json arguments = Json::parse(call["function"].value("arguments", ""), nullptr, false);
    list.push_back({{"function",
                     {{"name", call["function"].value("name", "")},
                      {"arguments", arguments.is_object() ? arguments : Json::object()}}}});
  }
  return list;
}

}  // namespace

std::string WithoutLatest(std::string name) {
  if (name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
  return name;
}

Parsed<TranslatedRequest> ChatOfOllama(std::string_view body, OllamaRoute route) {
  return TranslateToChat<OllamaTranslation>(body, route);
}

Parsed<TranslatedRequest> EmbeddingOfOllama(std::string_view body, OllamaEmbedRoute route) {
  return TranslateToChat<OllamaEmbedTranslation>(body, route);
}

Json OllamaEmbedReply::Error(const Json& error, int) {
  return {{"error", error.value("message", "")}};
}

Json OllamaEmbedReply::Whole(const Json& answer) {
  if (route_ == OllamaEmbedRoute::kEmbeddings) {
    return {{"embedding", answer["data"][0]["embedding"]}};
  }
  Json vectors = Json::array();
  for (const Json& one : answer["data"]) vectors.push_back(one["embedding"]);
  return {{"model", answer["model"]},
          {"embeddings", std::move(vectors)},
          {"prompt_eval_count", answer["usage"]["prompt_tokens"]}};
}

Json OllamaReply::Error(const Json& error, int) { return {{"error", error.value("message", "")}}; }

Json OllamaReply::Line(const Json& answer, const std::string& content, const std::string& thinking,
                       const Json& calls) const {
  Json line = {{"model", answer["model"]}, {"created_at", TimeText(answer)}, {"done", false}};
  if (route_ == OllamaRoute::kGenerate) {
    line["response"] = content;
    if (!thinking.empty()) line["thinking"] = thinking;
    return line;
  }
  Json message = {{"role", "assistant"}, {"content", content}};
  if (!thinking.empty()) message["thinking"] = thinking;
  if (!calls.empty()) message["tool_calls"] = OllamaCalls(calls);
  line["message"] = std::move(message);
  return line;
}

Json OllamaReply::Last(Json line) const {
  line["done"] = true;
  line["done_reason"] = finish_reason_ == Json("length") ? "length" : "stop";
  if (usage_.is_object()) {
    line["prompt_eval_count"] = usage_.value("prompt_tokens", 0);
    line["eval_count"] = usage_.value("completion_tokens", 0);
  }
  return line;
}

Json OllamaReply::Whole(const Json& answer) {
  const Json& choice = answer["choices"][0];
  const Json& message = choice["message"];
  finish_reason_ = choice["finish_reason"];
  usage_ = answer["usage"];
  const std::string content =
      message["content"].is_string() ? message["content"].get<std::string>() : "";
  return Last(Line(answer, content, message.value("reasoning_content", ""),
                   message.value("tool_calls", Json::array())));
}

std::string OllamaReply::Chunk(const Json& chunk) {
  head_ = {{"model", chunk["model"]}, {"created", chunk["created"]}};
  if (chunk.contains("usage") && !chunk["usage"].is_null()) usage_ = chunk["usage"];
  if (chunk["choices"].empty()) return "";
  const Json& choice = chunk["choices"][0];
  if (!choice["finish_reason"].is_null()) finish_reason_ = choice["finish_reason"];
  const Json& delta = choice["delta"];
  // A call is shown when it is whole: its arguments are an object.
  for (const Json& part : delta.value("tool_calls", Json::array())) {
    const auto index = part["index"].get<size_t>();
    if (index >= calls_.size()) {
      calls_.push_back(part);
      continue;
    }
    Json& arguments = calls_[index]["function"]["arguments"];
    arguments = arguments.get<std::string>() + part["function"]["arguments"].get<std::string>();
  }
  const std::string content =
      delta.value("content", Json()).is_string() ? delta.value("content", "") : "";
  const std::string thinking = delta.value("reasoning_content", "");
  if (content.empty() && thinking.empty()) return "";
  return DumpJson(Line(head_, content, thinking, Json::array())) + "\n";
}

std::string OllamaReply::Done() {
  std::string out;
  if (!calls_.empty()) out = DumpJson(Line(head_, "", "", calls_)) + "\n";
  return out + DumpJson(Last(Line(head_, "", "", Json::array()))) + "\n";
}

std::string OllamaReply::StreamError(const Json& error) {
  return DumpJson(Error(error, 500)) + "\n";
}

}  // namespace millrace::serve
