#include "ops/hub/access.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "base/file.h"
#include "base/log.h"
#include "base/units.h"

namespace millrace::ops {
namespace {

constexpr char kHubUrl[] = "https://huggingface.co";
constexpr size_t kTokenBytesMax = 4096;
constexpr int64_t kStallMaxS = 3600;

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string ValueOf(const model::Environment& environment, const char* name) {
  return environment(name).value_or("");
}

std::string Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const size_t end = text.find_last_not_of(kSpace);
  return std::string(text.substr(begin, end == std::string_view::npos ? 0 : end + 1 - begin));
}

Result<std::string> ReadToken(const model::Environment& environment) {
  std::string token = Trimmed(ValueOf(environment, "HF_TOKEN"));
  std::string from = "HF_TOKEN";
  if (token.empty()) {
    const std::string given = ValueOf(environment, "HF_TOKEN_PATH");
    from = given.empty() ? model::HubHome(environment) + "/token" : given;
    const auto file = ReadFile(from, kTokenBytesMax);
    if (!file.ok() && file.status().code() == StatusCode::kNotFound) return std::string();
    if (!file.ok()) return file.status().WithContext("the hub's token");
    token = Trimmed(*file);
  }
  const bool plain = std::ranges::all_of(token, [](char c) { return c > 0x20 && c < 0x7f; });
  if (plain && token.size() <= kTokenBytesMax) return token;
  return InvalidArgument(fmt::format(
      "{} is no token of the hub: it must be one word of at most {} letters, digits and signs",
      Printable(from), kTokenBytesMax));
}

Result<std::string> ReadAuthorities(const model::Environment& environment) {
  for (const char* name : {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const std::string path = ValueOf(environment, name);
    if (path.empty()) continue;
    if (access(path.c_str(), R_OK) == 0) return path;
    return InvalidArgument(
        fmt::format("{}: cannot read {}; give a PEM file with certificates of authorities", name,
                    Printable(path)));
  }
  return std::string();
}

}  // namespace

bool IsOffline(const model::Environment& environment) {
  const std::string value = Lower(ValueOf(environment, "HF_HUB_OFFLINE"));
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

bool IsSafe(const net::Url& url) {
  return url.https || url.host == "localhost" || url.host == "127.0.0.1" || url.host == "::1";
}

bool SameOrigin(const net::Url& a, const net::Url& b) {
  return a.https == b.https && a.port == b.port && Lower(a.host) == Lower(b.host);
}

Result<HubAccess> ReadHubAccess(const model::Environment& environment) {
  HubAccess access;
  std::string url = ValueOf(environment, "HF_ENDPOINT");
  if (url.empty()) url = kHubUrl;
  const auto endpoint = net::ParseUrl(url);
  if (!endpoint.ok()) return endpoint.status().WithContext("HF_ENDPOINT");
  access.endpoint = *endpoint;
  if (!IsSafe(access.endpoint)) {
    return InvalidArgument(fmt::format(
        "HF_ENDPOINT {} has no TLS, so that anybody between could change the model: give an "
        "https:// address",
        Printable(url)));
  }
  MR_ASSIGN_OR_RETURN(access.token, ReadToken(environment));
  MR_ASSIGN_OR_RETURN(access.authorities, ReadAuthorities(environment));
  if (const std::string text = ValueOf(environment, "HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    const auto seconds = ParseInt(text);
    if (!seconds.ok() || *seconds < 1 || *seconds > kStallMaxS) {
      return InvalidArgument(
          fmt::format("HF_HUB_DOWNLOAD_TIMEOUT must be a number of seconds in [1, {}], got '{}'",
                      kStallMaxS, Printable(text, 60)));
    }
    access.stall = Duration::Seconds(static_cast<double>(*seconds));
  }
  return access;
}

}  // namespace millrace::ops
