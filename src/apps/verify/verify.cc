#include "apps/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "serve/observe/request_log.h"

namespace millrace::apps {
namespace {

constexpr size_t kErrorBytesShown = 200;

using OrderedJson = nlohmann::ordered_json;

Status NotALine(int number, std::string_view why) {
  return InvalidArgument(
      fmt::format("line {} is not of a request log ({}); millrace serve --request-log writes one",
                  number, why));
}

Result<LoggedLine> ParseLine(std::string_view text, int number) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return NotALine(number, "not a JSON object");
  if (json.value("millrace_request_log", 0) != serve::kRequestLogVersion) {
    return NotALine(number,
                    fmt::format("\"millrace_request_log\" is not {}", serve::kRequestLogVersion));
  }
  LoggedLine line{.number = number};
  try {
    line.id = json.at("id").get<std::string>();
    line.route = json.at("route").get<std::string>();
    line.fingerprint = json.at("fingerprint").get<std::string>();
    line.body = json.at("request").dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    line.prompt = json.at("prompt_token_ids").get<std::vector<TokenId>>();
    for (const OrderedJson& answer : json.at("answers")) {
      line.answers.push_back(answer.at("token_ids").get<std::vector<TokenId>>());
    }
  } catch (const OrderedJson::exception& error) {
    return NotALine(number, error.what());
  }
  if (line.route != "/v1/completions" && line.route != "/v1/chat/completions") {
    return NotALine(number, "unknown route");
  }
  return line;
}

std::string ErrorOf(int status, std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  std::string message(body);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    message = json["error"].value("message", message);
  }
  return fmt::format("HTTP {}: {}", status, Printable(message, kErrorBytesShown));
}

// Where the two part, in words. Empty: nowhere.
std::string Difference(const std::vector<TokenId>& was, const std::vector<TokenId>& is) {
  const auto [old_at, new_at] = std::ranges::mismatch(was, is);
  const auto position = old_at - was.begin();
  if (old_at == was.end() && new_at == is.end()) return "";
  const auto name = [](const auto& tokens, auto at) {
    return at == tokens.end() ? std::string("the end") : fmt::format("token {}", *at);
  };
  return fmt::format("position {}: was {}, is {}", position, name(was, old_at), name(is, new_at));
}

// The numeric class in a fingerprint: fp_0123456789abcdef_cpu-bits-3.
std::string_view ClassOf(std::string_view fingerprint) {
  const size_t at = fingerprint.rfind('_');
  const bool named = at != std::string_view::npos && at > std::string_view("fp").size();
  return named ? fingerprint.substr(at + 1) : "older than cpu-bits-3";
}

// Why answers of these two may have other bits.
std::string WhatDiffers(std::string_view was, std::string_view is) {
  if (ClassOf(was) != ClassOf(is)) {
    return fmt::format("the numeric class was {}, and is {}", ClassOf(was), ClassOf(is));
  }
  return "the numeric class is the same, so the weights or the KV cache's type differ";
}

}  // namespace

Result<std::vector<LoggedLine>> ParseRequestLog(std::string_view text) {
  std::vector<LoggedLine> lines;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    ++number;
    if (end == std::string_view::npos) break;  // it was being written
    if (end > at) {
      MR_ASSIGN_OR_RETURN(LoggedLine line, ParseLine(text.substr(at, end - at), number));
      lines.push_back(std::move(line));
    }
    at = end + 1;
  }
  if (lines.empty()) return InvalidArgument("it has no requests");
  return lines;
}

Verdict Compare(const LoggedLine& line, int status, std::string_view body) {
  if (status != 200) return {Sameness::kFailed, ErrorOf(status, body)};
  const Json answer = Json::parse(body, nullptr, false);
  const Json choices = answer.is_object() ? answer.value("choices", Json()) : Json();
  if (!choices.is_array() || choices.size() != line.answers.size()) {
    return {Sameness::kFailed, fmt::format("the answer has no {} choices", line.answers.size())};
  }
  const Json prompt =
      answer.value("prompt_token_ids", choices[0].value("prompt_token_ids", Json()));
  if (prompt != Json(line.prompt)) {
    return {Sameness::kOtherPrompt,
            fmt::format("its prompt has {} tokens now, it had {}; the chat template, the tokenizer "
                        "or the date in a template differs",
                        prompt.size(), line.prompt.size())};
  }
  const std::string fingerprint = answer.value("system_fingerprint", std::string());
  for (size_t i = 0; i < line.answers.size(); ++i) {
    const Json ids = choices[i].value("token_ids", Json());
    if (!ids.is_array()) return {Sameness::kFailed, "the answer has no token_ids"};
    const std::string where = Difference(line.answers[i], ids.get<std::vector<TokenId>>());
    if (where.empty()) continue;
    const std::string choice = line.answers.size() > 1 ? fmt::format("choice {}, ", i) : "";
    if (fingerprint == line.fingerprint) return {Sameness::kDifferent, choice + where};
    return {Sameness::kOtherBits,
            fmt::format("{}{}; it was computed by {}, and now by {}: {}", choice, where,
                        line.fingerprint, fingerprint, WhatDiffers(line.fingerprint, fingerprint))};
  }
  return {Sameness::kSame, ""};
}

VerifySummary Summarize(const std::vector<LoggedLine>& lines, const std::vector<Verdict>& verdicts,
                        size_t shown_max) {
  VerifySummary summary;
  for (size_t i = 0; i < lines.size(); ++i) {
    switch (verdicts[i].outcome) {
      case Sameness::kSame: ++summary.same; break;
      case Sameness::kDifferent: ++summary.different; break;
      case Sameness::kOtherBits: ++summary.other_bits; break;
      case Sameness::kOtherPrompt: ++summary.other_prompt; break;
      case Sameness::kFailed: ++summary.failed; break;
    }
    for (const auto& tokens : lines[i].answers) summary.tokens += tokens.size();
    if (verdicts[i].outcome == Sameness::kSame || summary.shown.size() == shown_max) continue;
    summary.shown.push_back(
        fmt::format("line {}, {}: {}", lines[i].number, lines[i].id, verdicts[i].detail));
  }
  return summary;
}

std::string VerifySummary::ToText() const {
  std::string text;
  for (const std::string& line : shown) text += line + "\n";
  if (shown.size() < all() - same)
    text += fmt::format("... and {} more\n", all() - same - shown.size());
  text += fmt::format(
      "{} of {} requests have the same bits ({} tokens)\n", FormatCount(static_cast<int64_t>(same)),
      FormatCount(static_cast<int64_t>(all())), FormatCount(static_cast<int64_t>(tokens)));
  const auto add = [&](size_t count, std::string_view what) {
    if (count > 0) text += fmt::format("{} {}\n", FormatCount(static_cast<int64_t>(count)), what);
  };
  add(different, "differ although workers of the same class computed them: please report this");
  add(other_bits, "differ, and workers with another fingerprint computed them");
  add(other_prompt, "have another prompt now");
  add(failed, "got no answer");
  return text;
}

Json VerifySummary::ToJson() const {
  return {{"requests", all()},
          {"same", same},
          {"different", different},
          {"other_bits", other_bits},
          {"other_prompt", other_prompt},
          {"failed", failed},
          {"tokens", tokens},
          {"shown", shown}};
}

Status VerifySummary::status() const {
  if (same == all()) return OkStatus();
  return DataLoss(
      fmt::format("{} of {} requests do not have the bits of the log", all() - same, all()));
}

}  // namespace millrace::apps
