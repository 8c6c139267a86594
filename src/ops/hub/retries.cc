#include "ops/hub/retries.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "base/units.h"

namespace millrace::ops {
namespace {

constexpr double kRetryAfterMaxS = 300;  // a server that asks for more is not waited for

bool MayPass(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kResourceExhausted;
}

void SleepFor(Duration time) { std::this_thread::sleep_for(std::chrono::nanoseconds(time.ns)); }

}  // namespace

Status Retries::Next(const HubResult& failed, bool progressed) {
  if (!MayPass(failed.status.code())) return failed.status;
  failures_ = progressed ? 1 : failures_ + 1;
  if (failures_ >= policy_.attempts) {
    return {failed.status.code(),
            fmt::format("{}; {} attempts failed: run the command again, it continues where this "
                        "one ended",
                        failed.status.message(), failures_)};
  }
  double wait_s = policy_.first.seconds();
  for (int i = 1; i < failures_; ++i) wait_s = std::min(wait_s * 2, policy_.most.seconds());
  if (failed.retry_after_s) {
    if (*failed.retry_after_s > kRetryAfterMaxS) {
      return {failed.status.code(),
              fmt::format("{}; it asks to be left alone for {}", failed.status.message(),
                          FormatDuration(*failed.retry_after_s))};
    }
    wait_s = std::max(wait_s, *failed.retry_after_s);
  }
  MR_LOG(warn, "{}; trying again in {}", failed.status.message(), FormatDuration(wait_s));
  (policy_.sleep ? policy_.sleep : SleepFor)(Duration::Seconds(wait_s));
  return OkStatus();
}

}  // namespace millrace::ops
