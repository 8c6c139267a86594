// The options of a worker about notices of its machine's end (docs/spot.md). One thread, at start.
#pragma once

#include <optional>

#include "apps/cli/command.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/url.h"
#include "notice/watcher.h"

namespace millrace::apps {

struct NoticeFlags {
  notice::SourceChoice source;
  std::optional<net::Url> endpoint;
  std::optional<Duration> grace;
};
void AddNoticeOptions(Command& command, const char* group, NoticeFlags* flags);
// What they and this machine say. kInvalidArgument: they do not fit each other.
Result<notice::Watched> ChooseNoticeSources(const NoticeFlags& flags);

}  // namespace millrace::apps
