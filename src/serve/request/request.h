// The typed and checked requests of the API endpoints, and their parsers. Parsing depends only on
// the body and the model's limits: pure functions, any thread.
//
// A known field with the wrong type or out of range is refused with its name. A known field that
// Millrace does not support is refused if it would change the meaning of the answer. Other fields
// without effect, including unknown ones, are accepted, because OpenAI's clients need that; the
// answer names them (ignored_fields.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "core/ids.h"
#include "core/sampling_params.h"
#include "serve/http/api_error.h"

namespace millrace::serve {

// The defaults in the model's generation_config.json, for fields that the client leaves out, as in
// vLLM.
struct SamplingDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};

struct ParseContext {
  int vocab_size = 0;      // rows of the embedding matrix
  int max_model_len = 0;   // prompt and output tokens together
  int embedding_size = 0;  // numbers of a vector
  SamplingDefaults defaults;
  bool parse_special_default = false;
  bool finds_tool_calls = false;  // the model's way to write them is known
  bool takes_templates = false;   // a request may have its own chat template
  std::string chat_template;      // the sources of the model's; empty: it has none
};

// How a prompt that is too long is cut.
struct Truncation {
  bool wanted = false;
  std::optional<int> tokens_max;  // none: what the model's length leaves
  bool keeps_beginning = false;
};

struct GenerationOptions {
  std::string model;      // empty: the first served name
  SamplingParams params;  // max_tokens unset: up to the model's length
  // The choices of an answer, the likeliest first, if params.n is larger (best_of); unset: all.
  std::optional<int> answers;
  bool hides_logprobs = false;         // params.logprobs is set only to find them
  std::vector<std::string> bad_words;  // for params.bad_words
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool metrics = false;        // the answer tells what its time went into
  bool token_ids = false;      // the answer has the ids of its tokens and of the prompt's
  bool tokens_as_ids = false;  // log-probabilities name tokens by their ids
  Truncation truncation;
  bool clamps_length = false;  // max_tokens beyond what the context leaves is lowered to that
  int priority = 0;
  std::string cache_salt;
  std::string prompt_cache_key;
  std::string request_id;  // becomes part of the response's id
  std::string ignored;     // IgnoredHeaderValue
  // The field that params.grammar comes from, for errors; empty if the output is not constrained.
  std::string constraint_field;
  // The fields of the schemas that it was made of, if it was made of several.
  std::vector<std::string> constraint_parts;
};

// A text, or token ids.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationOptions options;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  bool echo_only = false;              // echo with max_tokens 0: the generated token is not shown
  bool wants_prompt_logprobs = false;  // the field prompt_logprobs is set; an echo does not count
  bool add_special_tokens = true;
  bool parse_special = false;  // "<|end|>" in a text prompt becomes that token
};

// What a chat request says about tools.
struct ToolUse {
  enum class Choice { kAuto, kNone, kRequired };
  std::string tools;  // JSON with the keys in the client's order; empty: none
  Choice choice = Choice::kAuto;
  std::string only;         // kRequired: this tool; empty: any
  bool many = true;         // parallel_tool_calls
  bool any_strict = false;  // some tool has "strict": true
};

// The input of a chat template, as JSON texts with the keys in the client's order.
struct Conversation {
  std::string messages;         // at least one; content: a string, text parts, null or none
  std::string tools;            // empty: none
  std::string template_kwargs;  // empty: none
  std::string chat_template;    // the request's own, or the name of one; empty: the model's
  bool add_generation_prompt = true;
  bool continue_last = false;  // the answer goes on where the last message ends
};

struct ChatRequest {
  GenerationOptions options;
  Conversation conversation;
  ToolUse tools;
  std::optional<int> thinking_budget;  // tokens of reasoning
  bool hide_reasoning = false;
};

// /tokenize takes a text or a conversation.
struct TokenizeRequest {
  std::string model;
  std::variant<std::string, Conversation> input;
  bool add_special_tokens = true;
  bool parse_special = false;
  bool return_token_strs = false;
  std::string ignored;  // IgnoredHeaderValue
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
  std::string ignored;  // IgnoredHeaderValue
};

// A text to make a vector of, and the field that it comes from, for errors: "input[2]".
struct VectorInput {
  Prompt prompt;
  std::string where;
};

// What the routes that make vectors have in common.
struct VectorOptions {
  std::string model;
  Pooling pooling = Pooling::kLast;
  bool add_special_tokens = true;
  bool parse_special = false;
  Truncation truncation;
  int priority = 0;
  std::string cache_salt;
  std::string ignored;  // IgnoredHeaderValue
};

struct EmbeddingRequest {
  VectorOptions options;
  std::vector<VectorInput> inputs;  // at least one
  bool base64 = false;
  std::optional<int> dimensions;
  bool normalize = true;
};

// Compares inputs[i] with inputs[first + i], or inputs[0] with all others if `first` is 1.
struct ScoreRequest {
  VectorOptions options;
  std::vector<VectorInput> inputs;  // the first texts, then the second ones
  size_t first = 1;
};

struct RerankRequest {
  VectorOptions options;
  std::vector<VectorInput> inputs;  // the query, then the documents
  std::optional<int> top_n;         // none: all
  bool return_documents = true;
};

// With the keys of objects in the client's order: templates print objects, and constrained JSON has
// its properties in the schema's order.
using OrderedJson = nlohmann::ordered_json;

template <typename T>
using Parsed = std::variant<T, ApiError>;

// Parse the text of a request's body.
Parsed<CompletionRequest> ParseCompletionRequest(std::string_view body,
                                                 const ParseContext& context);
Parsed<ChatRequest> ParseChatRequest(std::string_view body, const ParseContext& context);
// The same of a body that was made of another API's request.
Parsed<ChatRequest> ParseChatObject(const OrderedJson& body, const ParseContext& context);
Parsed<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const ParseContext& context);
Parsed<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                 const ParseContext& context);
// The same of a body that ParseBody has parsed.
Parsed<EmbeddingRequest> ParseEmbeddingRequest(const Json& body, const ParseContext& context);
Parsed<ScoreRequest> ParseScoreRequest(const Json& body, const ParseContext& context);
Parsed<RerankRequest> ParseRerankRequest(const Json& body, const ParseContext& context);

// Checks that each prompt fits into the model's context and that the request fits into the budgets
// of limits.h, once the lengths of the prompts are known. The result has max_tokens per prompt: the
// client's value, or else, or if it is larger and options.clamps_length, all tokens that the
// context leaves.
struct FittedLengths {
  std::vector<int> max_tokens;
};
Parsed<FittedLengths> FitLengths(const GenerationOptions& options, const ParseContext& context,
                                 const std::vector<int>& prompt_tokens);

}  // namespace millrace::serve
