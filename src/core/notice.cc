#include "core/notice.h"

namespace millrace {

std::string_view NoticeSourceName(NoticeSource source) {
  switch (source) {
    case NoticeSource::kSignal: return "signal";
    case NoticeSource::kKubernetes: return "kubernetes";
    case NoticeSource::kSlurm: return "slurm";
    case NoticeSource::kAws: return "aws";
    case NoticeSource::kGcp: return "gcp";
    case NoticeSource::kAzure: return "azure";
    case NoticeSource::kFile: return "file";
    case NoticeSource::kExec: return "exec";
    case NoticeSource::kUnknown: break;
  }
  return "unknown";
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
