// ServedModel: a loaded model, as the service and its generations need it. A value; what it points
// to outlives the service's Drain() and the HTTP server.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/generator.h"
#include "cluster/recovered_requests.h"
#include "core/ids.h"
#include "core/model_spec.h"
#include "serve/request/request.h"
#include "text/chat_template.h"
#include "text/grammars.h"
#include "text/tokenizer.h"
#include "text/tool_format.h"

namespace millrace::serve {

class ClusterAdmin;

struct ServedModel {
  cluster::Generator* engine = nullptr;
  ClusterAdmin* cluster = nullptr;                // null: the server has no cluster
  cluster::RecoveredRequests* earlier = nullptr;  // null: none are recovered
  std::shared_ptr<const text::Tokenizer> tokenizer;
  // The grammars of its vocabulary, or why there are none.
  Result<std::shared_ptr<text::Grammars>> grammars =
      FailedPrecondition("output cannot be constrained: the server has no token table");
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: no /v1/chat/completions
  // How its family writes tool calls and reasoning; null: not known, or not asked for.
  const text::ToolFormat* tool_format = nullptr;
  const text::ReasoningFormat* reasoning_format = nullptr;
  ModelSpec spec;
  std::vector<TokenId> end_tokens;  // end an answer, unless a request has ignore_eos
  int max_model_len = 0;
  SamplingDefaults defaults;
  std::map<std::string, std::string> cache_config;  // labels of vllm:cache_config_info
};

}  // namespace millrace::serve
