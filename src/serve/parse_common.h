// The parsers that the bodies of /v1/completions, /v1/chat/completions and /tokenize share. Pure
// functions, any thread.
#pragma once

#include "serve/field_reader.h"
#include "serve/request.h"

namespace millrace::serve {

// Reads every sampling field except those that the two endpoints name or default differently
// (max_tokens, logprobs).
void ReadSampling(FieldReader& reader, const SamplingDefaults& defaults, SamplingParams& params);
// Reads model, stream, stream_options, priority, cache_salt and request_id.
void ReadEnvelope(FieldReader& reader, GenerationOptions& options);
// Checks the ranges of core/sampling_params.h; errors name the field.
void CheckSampling(FieldReader& reader, const SamplingParams& params, int vocab_size);
// Refuses fields of vLLM and OpenAI that change the output and that Millrace does not support.
void RefuseUnsupported(FieldReader& reader);
// The same for fields that accompany `messages`.
void RefuseUnsupportedConversation(FieldReader& reader);

// Reads the token ids of `list`, each inside the vocabulary; `where` names the list in errors.
std::vector<TokenId> ReadTokenIds(FieldReader& reader, const char* field, const std::string& where,
                                  const Json& list, int vocab_size);

// Reads messages, tools, tool_choice, add_generation_prompt and chat_template_kwargs. `text` is the
// body that the reader's object was parsed from.
void ReadConversation(FieldReader& reader, std::string_view text, Conversation& conversation);

// The body as a JSON object, or a 400 with the reason why it is not one.
Parsed<Json> ParseBody(std::string_view body);

}  // namespace millrace::serve
