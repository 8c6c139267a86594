// The parts that the bodies of /v1/completions, /v1/chat/completions and /tokenize share.
#pragma once

#include "serve/field_reader.h"
#include "serve/request.h"

namespace millrace::serve {

// Every sampling field except the ones the two endpoints name or default differently (max_tokens,
// logprobs).
void ReadSampling(FieldReader& reader, const SamplingDefaults& defaults, SamplingParams& params);
// model, stream, stream_options, priority, cache_salt, request_id.
void ReadEnvelope(FieldReader& reader, GenerationOptions& options);
// The ranges of core/sampling_params.h, with the field's name.
void CheckSampling(FieldReader& reader, const SamplingParams& params, int vocab_size);
// Fields of vLLM and OpenAI that change the output and that Millrace does not have.
void RefuseUnsupported(FieldReader& reader);
// The same of fields that stand beside `messages`.
void RefuseUnsupportedConversation(FieldReader& reader);

// Token ids of `list`, each inside the vocabulary; `where` names the list in errors.
std::vector<TokenId> ReadTokenIds(FieldReader& reader, const char* field, const std::string& where,
                                  const Json& list, int vocab_size);

// messages, tools, tool_choice, add_generation_prompt, chat_template_kwargs. `text` is the body
// that the reader's object was parsed from.
void ReadConversation(FieldReader& reader, std::string_view text, Conversation& conversation);

// The body as a JSON object, or the 400 that says why it is none.
Parsed<Json> ParseBody(std::string_view body);

}  // namespace millrace::serve
