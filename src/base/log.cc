#include "base/log.h"

#include <fmt/chrono.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>

#include "base/json.h"
#include "base/log_format.h"
#include "base/log_mute.h"

namespace millrace {
namespace {

thread_local int mutes = 0;  // that live on this thread
std::atomic<LogFormat> current_format = LogFormat::kText;

// A logger calls its sinks on the thread that logs.
class MutedSink : public spdlog::sinks::stderr_color_sink_mt {
 public:
  using Base = spdlog::sinks::stderr_color_sink_mt;
  void log(const spdlog::details::log_msg& message) override {
    if (mutes == 0) Base::log(message);
  }
};

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string line = JsonLogLine(message.time, {level.data(), level.size()},
                                         {message.payload.data(), message.payload.size()});
    out.append(line.data(), line.data() + line.size());
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

}  // namespace

LogMute::LogMute() { ++mutes; }
LogMute::~LogMute() { --mutes; }

Status InitLog(std::string_view level, LogFormat format) {
  auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument(fmt::format(
        "unknown log level '{}': use trace, debug, info, warning, error or off", Printable(level)));
  }
  const char* no_color = std::getenv("NO_COLOR");
  auto sink = std::make_shared<MutedSink>();
  if (no_color != nullptr && *no_color != '\0') sink->set_color_mode(spdlog::color_mode::never);
  auto logger = std::make_shared<spdlog::logger>("millrace", std::move(sink));
  current_format = format;
  if (format == LogFormat::kJson) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  }
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
  return OkStatus();
}

LogFormat CurrentLogFormat() { return current_format; }

std::string JsonLogLine(std::chrono::system_clock::time_point time, std::string_view level,
                        std::string_view message, std::string_view process) {
  const auto ms = std::chrono::floor<std::chrono::milliseconds>(time);
  const auto s = std::chrono::floor<std::chrono::seconds>(ms);
  const std::time_t unix_s = std::chrono::system_clock::to_time_t(s);
  // In this order, which people read.
  nlohmann::ordered_json line = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(unix_s), (ms - s).count())},
      {"level", level},
      {"message", message}};
  if (!process.empty()) line["process"] = process;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string JsonLogLineOf(std::string_view process, std::string_view line) {
  if (Result<Json> parsed = ParseJson(line);
      parsed.ok() && parsed->is_object() && parsed->contains("message")) {
    (*parsed)["process"] = process;
    return DumpJson(*parsed);
  }
  return JsonLogLine(std::chrono::system_clock::now(), "info", line, process);
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
