// TextRoutes: between text and tokens, without generating any: POST /tokenize, /detokenize and
// /apply-template, GET /tokenizer_info, in vLLM's shapes. Owned by the service; any thread.
#pragma once

#include <utility>

#include "serve/http/router.h"
#include "serve/other_apis.h"

namespace millrace::serve {

class TextRoutes {
 public:
  explicit TextRoutes(ChatRoutes routes) : routes_(std::move(routes)) {}
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);

 private:
  void Tokenize(Call call);
  void Detokenize(Call call);
  void ApplyTemplate(Call call);
  void TokenizerInfo(Call call);

  const ChatRoutes routes_;
};

}  // namespace millrace::serve
