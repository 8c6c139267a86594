// What a model folder says of how answers end, and what the user should know of the folder. Read at
// the start, by one thread.
#pragma once

#include <string>
#include <vector>

#include "apps/cluster/local_model.h"
#include "core/ids.h"

namespace millrace::apps {

// The tokens that end a sequence, each once: eos_token_id of generation_config.json, or of
// config.json if that has none; eos_token of tokenizer_config.json; and what the chat template
// writes after an answer. All of them are tokens of the model. Reads spec, generation, tokenizer
// and chat_template of `model`.
std::vector<TokenId> EndTokens(const LocalModel& model);

// "</s> (2), <|im_end|> (32001)"
std::string EndTokensText(const LocalModel& model);

// What to know of the pooling that sentence-transformers' 1_Pooling/config.json in the folder
// names; empty: nothing, it is that of requests without `pooling`.
std::string PoolingNote(const std::string& folder);

// Logs the notes on the folder's files, and the tokens of the tokenizer that the model lacks.
void LogFolderNotes(const LocalModel& model);

}  // namespace millrace::apps
