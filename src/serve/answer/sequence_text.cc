#include "serve/answer/sequence_text.h"

namespace millrace::serve {

SequenceText::SequenceText(std::shared_ptr<const text::Tokenizer> tokenizer,
                           const SamplingParams& params, std::span<const TokenId> prompt,
                           const AnswerSplit& split)
    : params_(params),
      detokenizer_(std::move(tokenizer), params.skip_special_tokens, prompt),
      matcher_(params.stop, params.include_stop_str_in_output) {
  detokenizer_.Show(text::MarkersOf(split.tools, split.reasoning));
}

void SequenceText::Add(TokenId token, std::string& out) {
  ++tokens_;
  Push(detokenizer_.Push(token), out);
}

void SequenceText::Finish(std::string& out) {
  Push(detokenizer_.Flush(), out);
  if (!stop_) out += matcher_.Flush();
}

void SequenceText::Push(const std::string& text, std::string& out) {
  if (text.empty()) return;
  if (tokens_ <= params_.min_tokens) {
    out += matcher_.PushUnmatched(text);
    return;
  }
  text::StopResult result = matcher_.Push(text);
  out += result.text;
  stop_ = result.stop;
}

}  // namespace millrace::serve
