#include "notice/source.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace millrace::notice {
namespace {

constexpr int kAnswerDepthMax = 16;

}  // namespace

void Source::Complain(const std::string& text) {
  if (known_complaints_.size() >= kComplaintsMax) return;
  if (known_complaints_.insert(text).second) complaints_.push_back(text);
}

void MetadataSource::Succeeded(const Moment& now, Duration pause) {
  back_off_ = {};
  due_ = now.time + pause;
}

void MetadataSource::Failed(const Moment& now, const std::string& complaint) {
  back_off_ = std::clamp(back_off_ + back_off_, kBackOffFirst, kBackOffMost);
  due_ = now.time + back_off_;
  Complain(complaint);
}

WallTime ProviderWall(const Answer& answer, const Moment& now) {
  const auto date = net::FindHeader(answer.headers, "Date");
  return (date ? ParseRfc1123(*date) : std::nullopt).value_or(now.wall);
}

std::string WhyUseless(const Answer& answer) {
  if (!answer.status.ok()) return Printable(answer.status.message());
  return fmt::format("it answers HTTP {}", answer.code);
}

Result<Json> ReadJson(const Answer& answer) { return ParseJson(answer.body, kAnswerDepthMax); }

std::string TextOf(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto at = object.find(key);
  if (at == object.end() || !at->is_string()) return "";
  const auto& text = at->get_ref<const std::string&>();
  return text.size() <= kFieldBytesMax ? text : "";
}

}  // namespace millrace::notice
