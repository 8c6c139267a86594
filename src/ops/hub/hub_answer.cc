#include "ops/hub/hub_answer.h"

#include <fmt/format.h>
#include <strings.h>

#include "base/log.h"
#include "base/units.h"

namespace millrace::ops {
namespace {

constexpr int kBadRequest = 400, kUnauthorized = 401, kForbidden = 403, kNoSuchPage = 404,
              kRequestTimeout = 408, kTooManyRequests = 429, kServerErrors = 500;

bool SameName(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view TrimmedValue(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' ||
                           text.back() == '\n')) {
    text.remove_suffix(1);
  }
  return text;
}

std::optional<int64_t> Count(std::string_view text) {
  const auto value = ParseInt(text);
  return value.ok() && *value >= 0 ? std::optional(*value) : std::nullopt;
}

// W/"abc" and "abc" are abc.
std::string PlainEtag(std::string_view text) {
  if (text.starts_with("W/")) text.remove_prefix(2);
  if (text.size() >= 2 && text.starts_with('"') && text.ends_with('"')) {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

// "bytes 100-199/200" begins at 100.
std::optional<int64_t> RangeBegin(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  return Count(text.substr(0, text.find('-')));
}

std::string Said(const HubHead& head) {
  return head.error_text.empty() ? "" : fmt::format(" ({})", Printable(head.error_text, 200));
}

Status MayNotRead(const HubHead& head, const HubCall& call, const HubAccess& access) {
  const bool token = !access.token.empty();
  const auto refuse = [&](std::string text) {
    return Status(StatusCode::kUnauthenticated, text + Said(head));
  };
  if (head.error_code == "GatedRepo") {
    return refuse(fmt::format("{} is gated: accept its terms on its page at {}, and {}", call.what,
                              access.endpoint.HostHeader(),
                              token ? "use a token (HF_TOKEN) of the account that did"
                                    : "set HF_TOKEN to a token of that account"));
  }
  if (!token) {
    return refuse(fmt::format(
        "the hub has no public {}: check the name, or set HF_TOKEN if it is private or gated",
        call.what));
  }
  return refuse(fmt::format(
      "the hub does not let the token read {}: check the name and HF_TOKEN, or accept the model's "
      "terms on its page",
      call.what));
}

}  // namespace

void TakeHubHeader(std::string_view line, bool from_hub, HubHead& head) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon), value = TrimmedValue(line.substr(colon + 1));
  const auto is = [name](std::string_view other) { return SameName(name, other); };
  if (is("Content-Length")) head.body_bytes = Count(value);
  if (is("Content-Range")) head.begin = RangeBegin(value);
  if (is("Retry-After")) {
    if (const auto seconds = Count(value)) head.retry_after_s = static_cast<double>(*seconds);
  }
  if (!from_hub) return;
  if (is("X-Linked-Etag")) {
    head.etag = PlainEtag(value);
    head.linked = true;
  }
  if (is("X-Linked-Size")) head.file_bytes = Count(value);
  if (is("ETag") && !head.linked) head.etag = PlainEtag(value);
  if (is("X-Error-Code")) head.error_code = value;
  if (is("X-Error-Message")) head.error_text = value;
}

Status RefusalOf(const HubHead& head, const HubCall& call, const HubAccess& access) {
  if (head.status == kUnauthorized || head.status == kForbidden) {
    return MayNotRead(head, call, access);
  }
  if (head.status == kNoSuchPage) {
    const bool revision = head.error_code == "RevisionNotFound";
    return NotFound(fmt::format("the hub has no {}: check {}{}", call.what,
                                revision ? "--revision" : "the name", Said(head)));
  }
  if (head.status == kTooManyRequests) {
    return ResourceExhausted(fmt::format("{}: the hub answers 429, too many requests", call.what));
  }
  if (head.status >= kServerErrors || head.status == kRequestTimeout) {
    return Unavailable(fmt::format("{}: the hub answers {}{}", call.what, head.status, Said(head)));
  }
  if (head.status >= kBadRequest) {
    return FailedPrecondition(
        fmt::format("{}: the hub answers {}{}", call.what, head.status, Said(head)));
  }
  return DataLoss(fmt::format("{}: the hub answers {}, which is no answer to a download", call.what,
                              head.status));
}

}  // namespace millrace::ops
