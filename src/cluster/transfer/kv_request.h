// The request with which one worker pulls KV from another (docs/formats/data-plane.md). Requests
// are untrusted. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/worker_messages.h"
#include "stage/stage.h"

namespace millrace::cluster {

std::vector<std::byte> EncodePullRequest(const KvHandle& handle, const stage::KvBox& box);
// kInvalidArgument: not a pull request, or its box is empty.
Result<std::pair<KvHandle, stage::KvBox>> DecodePullRequest(std::span<const std::byte> bytes);

}  // namespace millrace::cluster
