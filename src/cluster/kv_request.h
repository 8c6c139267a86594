// What a worker asks another for KV (docs/formats/data-plane.md). Whoever asks is not trusted.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/worker_messages.h"
#include "engine/stage.h"

namespace millrace::cluster {

std::vector<std::byte> EncodePullRequest(const KvHandle& handle, const engine::KvBox& box);
// kInvalidArgument: none, or one of an empty box.
Result<std::pair<KvHandle, engine::KvBox>> DecodePullRequest(std::span<const std::byte> bytes);

}  // namespace millrace::cluster
