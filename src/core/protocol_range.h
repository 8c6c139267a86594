// The versions of the protocol between the processes of a cluster (docs/formats/control-plane.md)
// that one process speaks. Two processes can work together if some version is in both ranges.
// Values and pure functions; any thread.
//
// A new version may add messages and fields that a process of the version before ignores. It keeps
// the meaning of those that exist and requires no new ones from its peers, so that each release
// accepts the protocol of the release before.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

inline constexpr int kProtocolVersion = 6;
inline constexpr int kProtocolVersionOldest = 5;  // that this release still accepts
// The first version with the messages of profiles, of probed links, and of notices that are soft or
// withdrawn, with constrained output, with embeddings, with what sampling_params.h has had since
// then, and with test steps. They are sent only to a process that speaks it.
inline constexpr int kProtocolProfiles = 6, kProtocolNotices = 6, kProtocolGrammars = 6,
                     kProtocolEmbeddings = 6, kProtocolBeams = 6, kProtocolTestSteps = 6;

struct ProtocolRange {
  int oldest = kProtocolVersionOldest;
  int newest = kProtocolVersion;
  friend bool operator==(const ProtocolRange&, const ProtocolRange&) = default;
};

// "4-5", or "5" for a single version.
std::string ToText(const ProtocolRange& range);
// kInvalidArgument: neither of these, or the range is empty.
Result<ProtocolRange> ParseProtocolRange(std::string_view text);

// kFailedPrecondition: no version is in both ranges. The message names both and the cure.
Status CheckProtocol(const ProtocolRange& mine, const ProtocolRange& its);

}  // namespace millrace
