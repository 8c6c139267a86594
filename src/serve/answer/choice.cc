#include "serve/answer/choice.h"

#include <algorithm>

#include "serve/request/call_ids.h"

namespace millrace::serve {
namespace {

constexpr char kNoTokenLeft[] = "no_token_left";  // a stop_reason

TokenAlternative Alternative(const text::Tokenizer& tokenizer, const TokenLogprob& token) {
  return {.id = token.token,
          .bytes = std::string(tokenizer.Token(token.token).text),
          .logprob = token.logprob,
          .rank = token.rank};
}

TokenReport Report(const text::Tokenizer& tokenizer, const PositionLogprobs& logprobs,
                   int64_t text_offset) {
  TokenReport report;
  report.chosen = Alternative(tokenizer, logprobs.chosen);
  for (const TokenLogprob& other : logprobs.top)
    report.top.push_back(Alternative(tokenizer, other));
  report.text_offset = text_offset;
  return report;
}

// The characters that the token adds to the visible text; hidden tokens add none.
int64_t ShownCharacters(const text::Tokenizer& tokenizer, TokenId token, bool hide_special) {
  const text::TokenInfo info = tokenizer.Token(token);
  return info.special && hide_special ? 0 : CountCharacters(info.text);
}

}  // namespace

TokenReports PromptReports(const text::Tokenizer& tokenizer, const std::vector<TokenId>& prompt,
                           const std::vector<PositionLogprobs>& logprobs, bool hide_special) {
  auto reports = std::make_shared<std::vector<TokenReport>>();
  int64_t offset = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    PositionLogprobs position;
    position.chosen.token = prompt[i];
    const bool known = i > 0 && i - 1 < logprobs.size();
    TokenReport& report =
        reports->emplace_back(Report(tokenizer, known ? logprobs[i - 1] : position, offset));
    report.has_logprob = known;
    if (hide_special && tokenizer.Token(prompt[i]).special) report.chosen.bytes.clear();
    offset += CountCharacters(report.chosen.bytes);
  }
  return reports;
}

Choice::Choice(std::shared_ptr<const text::Tokenizer> tokenizer, const SamplingParams& params,
               std::span<const TokenId> prompt, Setup setup)
    : tokenizer_(std::move(tokenizer)),
      params_(params),
      setup_(std::move(setup)),
      text_(tokenizer_, params, prompt, setup_.split),
      waits_for_prompt_(setup_.echo_reports) {
  if (setup_.split.any()) parser_.emplace(setup_.split.ParserOptions());
  part_.index = setup_.index;
  part_.text = setup_.echo;
  part_.has_logprobs = params.logprobs.has_value() && !setup_.hide_logprobs;
  part_.tokens_as_ids = setup_.tokens_as_ids;
  if (setup_.token_ids) {
    part_.token_ids.emplace();
    part_.prompt_token_ids.emplace(prompt.begin(), prompt.end());
  }
  text_offset_ = CountCharacters(setup_.echo);
}

void Choice::SetPromptReports(TokenReports reports) {
  if (!waits_for_prompt_) return;
  waits_for_prompt_ = false;
  part_.logprobs.insert(part_.logprobs.begin(), reports->begin(), reports->end());
}

bool Choice::Apply(const RequestOutput& output) {
  if (!finish_reason_.empty()) return false;
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const TokenId token = output.tokens[i];
    ++generated_;
    if (setup_.keeps_tokens) tokens_.push_back(token);
    if (i < output.logprobs.size()) logprob_ += output.logprobs[i].chosen.logprob;
    if (setup_.hide_generated) continue;
    if (part_.token_ids) part_.token_ids->push_back(token);
    AddReport(token, i < output.logprobs.size() ? &output.logprobs[i] : nullptr);
    const bool stops = output.stop_token && i + 1 == output.tokens.size();
    if (stops && !params_.include_stop_str_in_output) continue;
    std::string text;
    if (parser_ && parser_->in_reasoning()) ++reasoning_tokens_;
    text_.Add(token, text);
    Show(text);
    if (text_.stop()) {
      Finish("stop", params_.stop[*text_.stop()], true);
      return !output.finish;
    }
  }
  if (!output.finish) return false;
  if (!setup_.hide_generated) {
    std::string text;
    text_.Finish(text);
    Show(text);
  }
  if (text_.stop()) {
    Finish("stop", params_.stop[*text_.stop()], true);
    return false;
  }
  const auto& ids = params_.stop_token_ids;
  const bool by_id =
      output.stop_token && std::find(ids.begin(), ids.end(), *output.stop_token) != ids.end();
  Json stop_reason = by_id ? Json(*output.stop_token) : Json();
  // Only masks that leave no token cut an answer before its length.
  const bool cut = output.finish == FinishReason::kLength && !setup_.hide_generated &&
                   generated_ < setup_.max_tokens;
  if (cut) stop_reason = kNoTokenLeft;
  Finish(std::string(FinishReasonName(*output.finish)), std::move(stop_reason),
         by_id || !output.stop_token);
  return false;
}

void Choice::Show(const std::string& text) {
  if (!parser_) {
    part_.text += text;
    return;
  }
  text::AnswerPieces pieces;
  parser_->Push(text, pieces);
  Add(pieces);
}

void Choice::Add(const text::AnswerPieces& pieces) {
  part_.text += pieces.content;
  if (!setup_.split.hide_reasoning) part_.reasoning += pieces.reasoning;
  for (const text::ToolCallDelta& delta : pieces.calls) {
    if (part_.calls.empty() || part_.calls.back().index != delta.index) {
      part_.calls.push_back({.index = delta.index, .id = {}, .name = {}, .arguments = {}});
    }
    CallPart& part = part_.calls.back();
    if (!delta.name.empty()) {
      part.id = NewCallId(setup_.call_ids, setup_.response_id, setup_.index,
                          setup_.split.first_call + delta.index, delta.name);
      part.name = delta.name;
    }
    part.arguments += delta.arguments;
  }
}

void Choice::AddReport(TokenId token, const PositionLogprobs* logprobs) {
  if (part_.has_logprobs && logprobs != nullptr) {
    part_.logprobs.push_back(Report(*tokenizer_, *logprobs, text_offset_));
  }
  text_offset_ += ShownCharacters(*tokenizer_, token, params_.skip_special_tokens);
}

void Choice::Finish(std::string reason, Json stop_reason, bool cut) {
  if (parser_) {
    text::AnswerPieces pieces;
    parser_->Finish(pieces, cut);
    Add(pieces);
    if (reason == "stop" && parser_->has_whole_calls()) reason = "tool_calls";
  }
  finish_reason_ = reason;
  part_.finish_reason = std::move(reason);
  part_.stop_reason = std::move(stop_reason);
}

bool Choice::HasOutput() const {
  if (!part_.finish_reason.empty()) return true;
  if (waits_for_prompt_ || (generated_ == 0 && part_.logprobs.empty())) return false;
  return !part_.text.empty() || !part_.reasoning.empty() || !part_.calls.empty() ||
         !part_.logprobs.empty();
}

ChoicePart Choice::Take() {
  ChoicePart next;
  next.index = part_.index;
  next.has_logprobs = part_.has_logprobs;
  next.fingerprint = part_.fingerprint;
  next.tokens_as_ids = part_.tokens_as_ids;
  if (part_.token_ids) next.token_ids.emplace();
  std::swap(next, part_);
  next.has_logprobs = next.has_logprobs && !next.logprobs.empty();
  return next;
}

}  // namespace millrace::serve
