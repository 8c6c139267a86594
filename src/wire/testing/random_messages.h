// For tests and benchmarks: messages that keep every rule and are otherwise arbitrary.
#pragma once

#include "base/rng.h"
#include "core/worker_messages.h"
#include "wire/codec.h"

namespace millrace::wire::testing {

Envelope RandomEnvelope(Rng& rng);
// The kind is the index into the variant.
ToController RandomToController(Rng& rng, size_t kind);
ToWorker RandomToWorker(Rng& rng, size_t kind);
PeerMessage RandomPeerMessage(Rng& rng, size_t kind);
Heartbeat RandomHeartbeat(Rng& rng);
Echo RandomEcho(Rng& rng);

// A step in which each of `sequences` computes one token; a sixteenth of them open a block.
PipelineStep DecodeStep(int sequences);

}  // namespace millrace::wire::testing
