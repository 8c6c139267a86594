// What a chat request's tools and its model's reasoning mean for its answer: how the text is split,
// and what it must match. Pure; any thread.
#pragma once

#include <optional>
#include <string_view>

#include "serve/answer/answer_split.h"
#include "serve/generation/served_model.h"
#include "serve/http/api_error.h"
#include "serve/request/request.h"

namespace millrace::serve {

// `prompt`: the rendered conversation. Sets `split`, and the grammar in request.options if calls
// are required, strict, or follow reasoning. Returns the error of a request that contradicts
// itself.
std::optional<ApiError> PrepareAnswer(const ServedModel& model, std::string_view prompt,
                                      ChatRequest& request, AnswerSplit& split);

}  // namespace millrace::serve
