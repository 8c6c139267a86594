// The parsers that the bodies of /v1/completions, /v1/chat/completions and /tokenize share. Pure
// functions, any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/request/field_reader.h"
#include "serve/request/request.h"

namespace millrace::serve {

// These fields of a body, with the keys of objects in the client's order.
using OrderedFields = std::function<OrderedJson(const std::vector<std::string>& names)>;
// Of a text, which is JSON: the rest of it is not built a second time. Both refer to the body.
OrderedFields FieldsOf(std::string_view body);
OrderedFields FieldsOf(const OrderedJson& body);

// Reads every sampling field except those that the two endpoints name or default differently
// (max_tokens, logprobs).
void ReadSampling(FieldReader& reader, const SamplingDefaults& defaults,
                  GenerationOptions& options);
// Reads truncate_prompt_tokens, at most `max`, and truncation_side. As vLLM has them: -1 is what
// the model's length leaves.
void ReadTruncation(FieldReader& reader, int max, Truncation& truncation);
// Reads model, stream, stream_options, priority, cache_salt, prompt_cache_key and request_id.
void ReadEnvelope(FieldReader& reader, GenerationOptions& options);
// To be called once all parameters are read. Completes them for best_of, and checks the ranges of
// core/sampling_params.h; errors name the field.
void CheckSampling(FieldReader& reader, int vocab_size, GenerationOptions& options);
// Reads what the output must match into params.grammar: response_format, structured_outputs,
// guided_*, structural_tag. After ReadSampling. `fields` are those of the reader's object.
void ReadConstraint(FieldReader& reader, const OrderedFields& fields, GenerationOptions& options);
// Refuses fields of vLLM and OpenAI that change the output and that Millrace does not support.
void RefuseUnsupported(FieldReader& reader);
// Reads the request's own chat_template, where the server takes one. Refuses fields that accompany
// `messages` and are not supported.
void ReadTemplate(FieldReader& reader, const ParseContext& context, Conversation& conversation);

// Reads the token ids of `list`, each inside the vocabulary; `where` names the list in errors.
std::vector<TokenId> ReadTokenIds(FieldReader& reader, const char* field, const std::string& where,
                                  const Json& list, int vocab_size);

// Reads a required field: a text, token ids, a list of texts, or a list of lists of token ids.
void ReadPrompts(FieldReader& reader, const char* field, int vocab_size,
                 std::vector<Prompt>& prompts);

// Reads tools, tool_choice and parallel_tool_calls.
void ReadTools(FieldReader& reader, const OrderedFields& fields, ToolUse& use);
// Reads messages, add_generation_prompt, chat_template_kwargs and reasoning_effort.
void ReadConversation(FieldReader& reader, const OrderedFields& fields, bool show_tools,
                      Conversation& conversation);

// Bounds the keys per object: objects of the ordered parse are lists, so parsing one is quadratic
// in its keys.
bool KeysWithinLimit(const Json& value);
void RefuseKeys(FieldReader& reader, std::string_view field);

// The body as a JSON object, or a 400 with the reason why it is not one.
Parsed<Json> ParseBody(std::string_view body);
// The bound of ParseBody on what a body consists of, for one that was made here.
std::optional<ApiError> CheckParts(const Json& body);

}  // namespace millrace::serve
