#include "serve/apis/ollama_api.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <initializer_list>
#include <optional>
#include <utility>

#include "serve/http/limits.h"
#include "serve/request/ignored_fields.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kLatest = ":latest";

// ollama's options and the fields of a chat request. `integer`: ollama's clients may write it with
// a point, as 40.0.
struct KnownOption {
  const char* name;
  const char* field;
  bool integer = false;
};
constexpr KnownOption kOptions[] = {{"temperature", "temperature"},
                                    {"top_p", "top_p"},
                                    {"top_k", "top_k", true},
                                    {"min_p", "min_p"},
                                    {"num_predict", "max_tokens", true},
                                    {"seed", "seed", true},
                                    {"stop", "stop"},
                                    {"repeat_penalty", "repetition_penalty"},
                                    {"presence_penalty", "presence_penalty"},
                                    {"frequency_penalty", "frequency_penalty"}};
// Values of num_predict: no limit, and what the context leaves. They are the same here.
constexpr int kUnlimited = -1, kFillContext = -2;

// The same number without a point, if it is whole.
OrderedJson AsInteger(const OrderedJson& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!value.is_number_float()) return value;
  const auto number = value.get<double>();
  const bool whole = std::abs(number) <= kExact && std::trunc(number) == number;
  return whole ? OrderedJson(static_cast<int64_t>(number)) : value;
}

// Whether a keep_alive says 0: a number of seconds, or a duration such as "5m" or "1h30m"; nullopt:
// it is neither.
std::optional<bool> IsZeroDuration(const OrderedJson& value) {
  if (value.is_number()) return value.get<double>() == 0;
  if (!value.is_string()) return std::nullopt;
  std::string_view text = value.get_ref<const std::string&>();
  if (text == "0") return true;
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  bool zero = true;
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
    const size_t end = std::min(text.find_first_of("0123456789.", digits), text.size());
    const std::string_view unit = text.substr(digits, end - digits);
    constexpr std::string_view kUnits[] = {"ns", "us", "\u00b5s", "\u03bcs", "ms", "s", "m", "h"};
    if (digits == 0 || std::ranges::find(kUnits, unit) == std::end(kUnits)) return std::nullopt;
    zero = zero && text.substr(0, digits).find_first_not_of("0.") == std::string_view::npos;
    text.remove_prefix(end);
  }
  return zero;
}

class OllamaTranslation : public ChatTranslation {
 public:
  OllamaTranslation(const Json& json, std::string_view body, const OllamaContext& context)
      : ChatTranslation(json, body), context_(context) {}

  std::optional<OllamaLoad> load() const { return load_; }

 private:
  void Read() override {
    std::string model;
    reader_.String("model", kNameBytesMax, model);
    model = WithoutLatest(model);
    if (!model.empty()) chat_["model"] = model;
    ReadKeepAlive();
    chat_["messages"] = OrderedJson::array();
    if (context_.route == OllamaRoute::kChat) {
      ReadMessages(model);
    } else {
      ReadPrompt(model);
    }
    ReadStream();
    Copy("tools");
    ReadFormat();
    ReadThink();
    ReadOptions();
    Copy("logprobs");
    Copy("top_logprobs");
    if (chat_.contains("top_logprobs")) {
      chat_["top_logprobs"] = AsInteger(chat_["top_logprobs"]);
    }
    // What is too long is refused, and an answer ends where the context does.
    reader_.Ignore("truncate", false);
    reader_.Ignore("shift", false);
  }

  void ReadStream() {
    bool stream = true;
    reader_.Bool("stream", stream);
    chat_["stream"] = stream;
    AskForUsage();
    chat_["return_metrics"] = true;  // for the durations
  }

  void ReadKeepAlive() {
    const OrderedJson& value = Take("keep_alive");
    if (value.is_null()) return;
    const std::optional<bool> zero = IsZeroDuration(value);
    if (!zero) {
      return Refuse("keep_alive", "must be a number of seconds or a duration such as \"5m\"",
                    value);
    }
    unload_ = *zero;
    reader_.AddIgnored("keep_alive");
  }

  void Load(const std::string& model) {
    load_ = OllamaLoad{.model = model, .unload = unload_, .ignored = {}};
  }

  void ReadMessages(const std::string& model) {
    const OrderedJson& messages = Take("messages");
    const bool none = messages.is_null() || (messages.is_array() && messages.empty());
    if (none && !model.empty()) return Load(model);
    if (!messages.is_array() || messages.empty()) {
      return Refuse("messages", "must be a list of at least one message", messages);
    }
    for (size_t i = 0; i < messages.size() && !reader_.failed(); ++i) {
      ReadMessage(fmt::format("messages[{}]", i), messages[i]);
    }
  }

  void ReadMessage(const std::string& where, OrderedJson message) {
    if (!message.is_object()) return Refuse(where, "must be an object", message);
    if (!message.value("images", OrderedJson()).empty()) return RefuseImages(where + ".images");
    message.erase("images");
    for (const auto& [from, to] :
         {std::pair("thinking", "reasoning_content"), std::pair("tool_name", "name")}) {
      const OrderedJson value = message.value(from, OrderedJson());
      if (message.erase(from) == 0 || value.is_null() || value == OrderedJson("")) continue;
      if (!value.is_string()) return Refuse(where + "." + from, "must be a string", value);
      if (!message.contains(to)) message[to] = value;
    }
    const OrderedJson calls = message.value("tool_calls", OrderedJson());
    for (size_t k = 0; calls.is_array() && k < calls.size(); ++k) {
      const std::string call = fmt::format("{}.tool_calls[{}]", where, k);
      const OrderedJson& function = MemberOf(calls[k], "function");
      if (!function.is_object()) {
        return Refuse(call, "must be an object with a function", calls[k]);
      }
      // Arguments of calls are objects here, and text there.
      const OrderedJson arguments = function.value("arguments", OrderedJson());
      OrderedJson& made = message["tool_calls"][k]["function"];
      if (arguments.is_object()) made["arguments"] = arguments.dump();
      made.erase("index");
    }
    AddMessage(where, std::move(message));
  }

  void ReadPrompt(const std::string& model) {
    reader_.Unsupported("raw", "use /v1/completions");
    reader_.Unsupported("template", "the model's own chat template is used");
    reader_.Unsupported("suffix", "put the whole text into the prompt");
    reader_.Unsupported("context", "send the conversation to /api/chat");
    if (!Take("images").empty()) return RefuseImages("images");
    std::string system, prompt;
    reader_.String("system", kAnyTextBytes, system);
    reader_.String("prompt", kAnyTextBytes, prompt);
    if (prompt.empty() && !model.empty()) return Load(model);
    if (prompt.empty()) return reader_.Fail("prompt", "prompt is required");
    if (!system.empty()) AddMessage("system", {{"role", "system"}, {"content", system}});
    AddMessage("prompt", {{"role", "user"}, {"content", prompt}});
    names_.Add("messages", "prompt");
  }

  void RefuseImages(const std::string& where) {
    reader_.Fail(UnsupportedField(where, where + ": images are not supported"));
  }

  void ReadFormat() {
    const OrderedJson& format = Take("format");
    names_.Add("response_format", "format");
    names_.Add("response_format.json_schema.schema", "format");
    if (format.is_null() || format == OrderedJson("")) return;
    if (format == OrderedJson("json")) {
      chat_["response_format"] = {{"type", "json_object"}};
    } else if (format.is_object()) {
      chat_["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"name", "format"}, {"schema", format}}}};
    } else {
      Refuse("format", "must be \"json\" or a JSON schema", format);
    }
  }

  void ReadThink() {
    const OrderedJson& think = Take("think");
    if (think.is_null()) return;
    const bool effort = think == OrderedJson("low") || think == OrderedJson("medium") ||
                        think == OrderedJson("high");
    if (!effort && !think.is_boolean()) {
      return Refuse("think", "must be true, false, \"low\", \"medium\" or \"high\"", think);
    }
    const bool on = effort || think.get<bool>();
    // By the two names that templates give it.
    chat_["chat_template_kwargs"] = {{"enable_thinking", on}, {"thinking", on}};
    if (effort) chat_["reasoning_effort"] = think;
    if (on && !context_.reasons) reader_.AddIgnored("think");
  }

  void ReadOptions() {
    const OrderedJson& options = Take("options");
    if (options.is_null()) return;
    if (!options.is_object()) return Refuse("options", "must be an object", options);
    for (const auto& [name, value] : options.items()) {
      if (value.is_null()) continue;
      const auto known =
          std::ranges::find(kOptions, std::string_view(name),
                            [](const KnownOption& one) { return std::string_view(one.name); });
      if (known == std::end(kOptions)) {
        reader_.AddIgnored("options." + name);
        continue;
      }
      names_.Add(known->field, "options." + name);
      const OrderedJson number = known->integer ? AsInteger(value) : value;
      const bool no_limit =
          number == OrderedJson(kUnlimited) || number == OrderedJson(kFillContext);
      if (name != "num_predict" || !no_limit) chat_[known->field] = number;
    }
  }

  // `where` is the path of `value`.
  void Refuse(const std::string& where, const std::string& must, const OrderedJson& value) {
    reader_.Fail(where, fmt::format("{} {}, got {}", where, must, Describe(Json(value))));
  }

  const OllamaContext context_;
  std::optional<OllamaLoad> load_;
  bool unload_ = false;
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
      names_.Add("input", "prompt");
    }
    Copy("dimensions");
    if (chat_.contains("dimensions")) chat_["dimensions"] = AsInteger(chat_["dimensions"]);
    bool truncate = true;
    reader_.Bool("truncate", truncate);
    if (truncate) {  // the end is cut off
      chat_["truncate_prompt_tokens"] = -1;
      chat_["truncation_side"] = "right";
    }
    const OrderedJson& options = Take("options");
    if (!options.is_null() && !options.is_object()) {
      reader_.Fail("options", "options must be an object, got " + Describe(Json(options)));
    }
    reader_.IgnoreUnknown("options", options, {});
    reader_.Ignore("keep_alive");
  }

  const OllamaEmbedRoute route_;
};

}  // namespace

std::string WithoutLatest(std::string name) {
  if (name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
  return name;
}

std::string OllamaTime(int64_t unix_s) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

Parsed<OllamaRequest> ReadOllamaRequest(std::string_view body, const OllamaContext& context) {
  Parsed<Json> parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  OllamaTranslation translation(std::get<Json>(parsed), body, context);
  Parsed<TranslatedRequest> made = translation.Run();
  if (auto* error = std::get_if<ApiError>(&made)) return std::move(*error);
  OllamaRequest request{.chat = std::move(std::get<TranslatedRequest>(made)),
                        .load = translation.load()};
  if (request.load) request.load->ignored = request.chat.ignored;
  return request;
}

Json OllamaLoadAnswer(const std::string& model, int64_t unix_s, const OllamaLoad& load,
                      OllamaRoute route) {
  Json answer = {{"model", model},
                 {"created_at", OllamaTime(unix_s)},
                 {"done", true},
                 {"done_reason", load.unload ? "unload" : "load"}};
  if (route == OllamaRoute::kChat) {
    answer["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    answer["response"] = "";
  }
  return answer;
}

Parsed<OllamaShow> ReadOllamaShow(std::string_view body) {
  Parsed<Json> parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  FieldReader reader(std::get<Json>(parsed));
  std::string model, older;
  reader.String("model", kNameBytesMax, model);
  reader.String("name", kNameBytesMax, older);
  reader.Ignore("system", "");
  reader.Ignore("template", "");
  reader.Ignore("options", Json::object());
  reader.Ignore("verbose", false);
  if (reader.error()) return *reader.error();
  return OllamaShow{.model = WithoutLatest(model.empty() ? older : model),
                    .ignored = IgnoredHeaderValue(reader)};
}

Parsed<TranslatedRequest> EmbeddingOfOllama(std::string_view body, OllamaEmbedRoute route) {
  return TranslateToChat<OllamaEmbedTranslation>(body, route);
}

Json OllamaEmbedAnswer(const Json& answer, OllamaEmbedRoute route, int64_t took_ns) {
  if (route == OllamaEmbedRoute::kEmbeddings) {
    return {{"embedding", answer["data"][0]["embedding"]}};
  }
  Json vectors = Json::array();
  for (const Json& one : answer["data"]) vectors.push_back(one["embedding"]);
  return {{"model", answer["model"]},
          {"embeddings", std::move(vectors)},
          {"total_duration", took_ns},
          {"load_duration", 0},
          {"prompt_eval_count", answer["usage"]["prompt_tokens"]}};
}

Json OllamaError(const ApiError& error) { return {{"error", error.message}}; }

}  // namespace millrace::serve
