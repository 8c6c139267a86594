// Which sources of notices a worker watches: what its operator chose, or what the machine looks
// like. Finding that out sends no packet and waits for nothing. Pure, except for a few small files
// that are read; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "core/notice.h"
#include "net/url.h"
#include "notice/providers.h"
#include "notice/wall_time.h"

namespace millrace::notice {

// What --notice-source says.
struct SourceChoice {
  bool automatic = true;
  std::optional<NoticeSource> source;  // unless automatic; unset: none
  std::string argument;                // what follows the name, as the path of kFile
};
// One of SourceChoices(). kInvalidArgument continues the option's name.
Result<SourceChoice> ParseSourceChoice(const std::string& text);
inline constexpr size_t kArgumentBytesMax = 4096;

// The address of a metadata service: http only, without a query. kInvalidArgument continues the
// option's name.
Result<net::Url> ParseEndpoint(const std::string& text);

// SIGTERM is a notice too. Whoever sends it kills the process some time later.
struct SignalSource {
  NoticeSource source = NoticeSource::kSignal;
  std::optional<Duration> grace;  // from SIGTERM to SIGKILL; unset: not known
  std::optional<WallTime> end;    // of the job; unset: not known
};
// What holds once SIGTERM has come.
MachineNotice SignalNotice(const SignalSource& source, const Moment& now);

struct Watched {
  SignalSource signal;
  std::optional<NoticeSource> source;  // one that is asked or looked at; unset: none
  std::string argument;
  net::Url endpoint;  // of a metadata service
};
// `grace`, `endpoint`: what the operator says; otherwise what the environment says.
// kInvalidArgument: the choice and these do not fit, or the environment names no URL.
Result<Watched> ChooseSources(const SourceChoice& choice, std::optional<Duration> grace,
                              const std::optional<net::Url>& endpoint, const Machine& machine);

}  // namespace millrace::notice
