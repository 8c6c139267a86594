#include "core/notice.h"

#include <algorithm>

namespace millrace {

std::string_view NoticeSourceName(NoticeSource source) {
  return kNoticeSourceNames[static_cast<size_t>(std::min(source, NoticeSource::kUnknown))];
}

std::string_view NoticeKindName(NoticeKind kind) {
  switch (kind) {
    case NoticeKind::kTerminate: return "terminate";
    case NoticeKind::kPreempt: return "preempt";
    case NoticeKind::kMaintenance: return "maintenance";
    case NoticeKind::kRebalance: return "rebalance";
    case NoticeKind::kUnknown: break;
  }
  return "unknown";
}

std::string ToText(const NoticeOrigin& origin) {
  std::string text(NoticeSourceName(origin.source));
  return text.append(": ").append(NoticeKindName(origin.kind));
}

}  // namespace millrace
