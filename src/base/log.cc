#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/log_mute.h"

namespace millrace {
namespace {

thread_local int mutes = 0;  // that live on this thread

// A logger calls its sinks on the thread that logs.
class MutedSink : public spdlog::sinks::stderr_color_sink_mt {
 public:
  using Base = spdlog::sinks::stderr_color_sink_mt;
  void log(const spdlog::details::log_msg& message) override {
    if (mutes == 0) Base::log(message);
  }
};

}  // namespace

LogMute::LogMute() { ++mutes; }
LogMute::~LogMute() { --mutes; }

Status InitLog(std::string_view level) {
  auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument(fmt::format(
        "unknown log level '{}': use trace, debug, info, warning, error or off", Printable(level)));
  }
  const char* no_color = std::getenv("NO_COLOR");
  auto sink = std::make_shared<MutedSink>();
  if (no_color != nullptr && *no_color != '\0') sink->set_color_mode(spdlog::color_mode::never);
  auto logger = std::make_shared<spdlog::logger>("millrace", std::move(sink));
  logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
  return OkStatus();
}

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (out.size() >= max_bytes) return out + "...";
    auto c = static_cast<unsigned char>(text[i]);
    if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

}  // namespace millrace
