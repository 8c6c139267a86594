#include "serve/stored/batch_lines.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/text_lines.h"
#include "serve/request/parse_common.h"

namespace millrace::serve {
namespace {

constexpr size_t kCustomIdBytesMax = 256;

struct LineOrError {
  BatchRequest request;
  std::string code, error;
};

LineOrError ParseLine(std::string_view line, int number, std::string_view endpoint) {
  const auto wrong = [](const char* code, std::string message) {
    return LineOrError{.code = code, .error = std::move(message)};
  };
  const auto parsed = ParseJson(line);
  if (!parsed.ok()) return wrong("invalid_json_line", parsed.status().message());
  if (!KeysWithinLimit(*parsed)) return wrong("invalid_json_line", "an object has too many keys");
  const OrderedJson object = OrderedJson::parse(line);
  if (!object.is_object()) return wrong("invalid_json_line", "the line is not a JSON object");
  const auto member = [&](const char* name) { return object.value(name, OrderedJson()); };
  const OrderedJson id = member("custom_id");
  if (!id.is_string() || id == OrderedJson("") ||
      id.get_ref<const std::string&>().size() > kCustomIdBytesMax) {
    return wrong("invalid_custom_id",
                 fmt::format("custom_id must be a string of 1 to {} bytes", kCustomIdBytesMax));
  }
  if (object.contains("method") && member("method") != OrderedJson("POST")) {
    return wrong("invalid_method", "method must be POST");
  }
  if (member("url") != OrderedJson(endpoint)) {
    return wrong("invalid_url", fmt::format("url must be {}, the endpoint of the batch", endpoint));
  }
  const OrderedJson body = member("body");
  if (!body.is_object()) return wrong("invalid_body", "body must be a JSON object");
  if (body.value("stream", OrderedJson(false)) != OrderedJson(false)) {
    return wrong("invalid_body", "stream must not be set: results are written as a whole");
  }
  return {.request = {.number = number,
                      .custom_id = id.get<std::string>(),
                      .body = body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)}};
}

}  // namespace

std::variant<std::vector<BatchRequest>, std::vector<BatchError>> ParseBatchFile(
    std::string_view text, std::string_view endpoint) {
  std::vector<BatchRequest> requests;
  std::vector<BatchError> errors;
  std::unordered_map<std::string, int> lines_of_ids;
  LineReader lines(text);
  while (auto line = lines.Next()) {
    if (line->find_first_not_of(" \t") == std::string_view::npos) continue;
    if (errors.size() == kBatchErrorsMax) return errors;
    const int number = lines.number();
    if (requests.size() == kBatchRequestsMax) {
      errors.push_back({number, "too_many_requests",
                        fmt::format("a batch has at most {} requests", kBatchRequestsMax)});
      return errors;
    }
    LineOrError parsed = ParseLine(*line, number, endpoint);
    if (!parsed.error.empty()) {
      errors.push_back({number, std::move(parsed.code), std::move(parsed.error)});
      continue;
    }
    const auto [at, is_new] = lines_of_ids.emplace(parsed.request.custom_id, number);
    if (!is_new) {
      errors.push_back({number, "duplicate_custom_id",
                        fmt::format("custom_id '{}' is already used in line {}",
                                    Printable(parsed.request.custom_id, 64), at->second)});
      continue;
    }
    requests.push_back(std::move(parsed.request));
  }
  if (requests.empty() && errors.empty()) {
    errors.push_back({1, "empty_file", "the file has no requests"});
  }
  if (!errors.empty()) return errors;
  return requests;
}

Json BatchResultLine(const std::string& custom_id, int status, Json body,
                     const std::string& ignored) {
  const Json id = body.is_object() ? body.value("id", Json()) : Json();
  Json response = {{"status_code", status}, {"request_id", id}, {"body", std::move(body)}};
  if (!ignored.empty()) response["ignored"] = ignored;
  return {{"custom_id", custom_id},
          {"id", "batch_req_" + custom_id},
          {"response", std::move(response)},
          {"error", nullptr}};
}

Json BatchErrorLine(const std::string& custom_id, const std::string& code,
                    const std::string& message) {
  return {{"custom_id", custom_id},
          {"id", "batch_req_" + custom_id},
          {"response", nullptr},
          {"error", {{"code", code}, {"message", message}}}};
}

}  // namespace millrace::serve
