// What a machine's owner says about its end: a notice that a worker gets and tells its controller.
// A hard notice says that the machine will go away, so the worker leaves. A soft one says that it
// may, or that it will pause; nothing moves because of it. Values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace millrace {

// The numbers are those of the wire format and of the names below; a number that is not listed is
// read as kUnknown.
enum class NoticeSource : uint8_t {
  kSignal = 0,  // SIGTERM, from whoever supervises the process
  kKubernetes,  // SIGTERM, from a kubelet
  kSlurm,       // SIGTERM, from Slurm
  kAws,
  kGcp,
  kAzure,
  kFile,
  kExec,
  kUnknown,
};
enum class NoticeKind : uint8_t {
  kTerminate = 0,  // the machine or the process ends
  kPreempt,        // its provider takes it back
  kMaintenance,    // it is restarted, moved or paused
  kRebalance,      // it is likely to be taken back
  kUnknown,
};
inline constexpr std::string_view kNoticeSourceNames[] = {
    "signal", "kubernetes", "slurm", "aws", "gcp", "azure", "file", "exec", "unknown"};
inline constexpr int kNoticeSources = std::size(kNoticeSourceNames), kNoticeKinds = 5;
static_assert(kNoticeSources == static_cast<int>(NoticeSource::kUnknown) + 1);

// "aws", "terminate".
std::string_view NoticeSourceName(NoticeSource source);
std::string_view NoticeKindName(NoticeKind kind);

struct NoticeOrigin {
  NoticeSource source = NoticeSource::kSignal;
  NoticeKind kind = NoticeKind::kTerminate;
  friend auto operator<=>(const NoticeOrigin&, const NoticeOrigin&) = default;
};
// "aws: terminate".
std::string ToText(const NoticeOrigin& origin);

struct MachineNotice {
  NoticeOrigin origin;
  bool hard = true;
  std::optional<Time> deadline;  // by the clock of whoever holds this; unset: none is known
  friend bool operator==(const MachineNotice&, const MachineNotice&) = default;
};

}  // namespace millrace
