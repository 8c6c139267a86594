// Messages of the control plane: the first byte selects the kind. An accepted message survives a
// write and a read unchanged, and a step's plan that passes the check can be applied.
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/check.h"
#include "core/sequence_tables.h"
#include "core/step_checker.h"
#include "wire/codec.h"

namespace {

using millrace::wire::Decoder;
using millrace::wire::Encoder;

void TryPlan(const millrace::StepPlan& plan) {
  constexpr millrace::StepLimits kLimits = {.block_size = 4,
                                            .num_blocks = 64,
                                            .num_host_blocks = 4,
                                            .max_batched_tokens = 256,
                                            .max_model_len = 128,
                                            .vocab_size = 1000};
  millrace::StepChecker checker(kLimits);
  const millrace::Status sound = checker.Check(plan);
  if (!sound.ok()) return MR_CHECK(!sound.message().empty());
  millrace::SequenceTables tables;
  for (const millrace::SequenceView& sequence : tables.Advance(plan)) {
    MR_CHECK(sequence.end() <= std::ssize(sequence.blocks) * kLimits.block_size);
    for (const millrace::BlockIndex block : sequence.blocks) {
      MR_CHECK(block >= 0 && block < kLimits.num_blocks);
    }
  }
}

void TryPlanOf(const millrace::Heartbeat&) {}
void TryPlanOf(const millrace::Echo&) {}
template <typename... Kinds>
void TryPlanOf(const std::variant<Kinds...>& message) {
  std::visit(
      [](const auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, millrace::PipelineStep>) TryPlan(*kind.plan);
      },
      message);
}

template <typename Decode>
void Probe(std::span<const uint8_t> bytes, Decode decode) {
  static Encoder encoder, again;
  const auto received = decode(bytes);
  if (!received.ok()) {
    MR_CHECK(!received.status().message().empty());
    return;
  }
  const auto written = encoder.Encode(received->envelope, received->message);
  MR_CHECK(written.ok()) << written.status().ToString();
  const auto second = decode(*written);
  MR_CHECK(second.ok()) << "what was written is not read back: " << second.status().ToString();
  const auto rewritten = again.Encode(second->envelope, second->message);
  MR_CHECK(rewritten.ok() && std::vector(written->begin(), written->end()) ==
                                 std::vector(rewritten->begin(), rewritten->end()));
  TryPlanOf(received->message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Decoder decoder;
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  switch (data[0] % 5) {
    case 0: Probe(bytes, [](auto b) { return decoder.DecodeToController(b); }); break;
    case 1: Probe(bytes, [](auto b) { return decoder.DecodeToWorker(b); }); break;
    case 2: Probe(bytes, [](auto b) { return decoder.DecodePeerMessage(b); }); break;
    case 3: Probe(bytes, [](auto b) { return decoder.DecodeHeartbeat(b); }); break;
    default: Probe(bytes, [](auto b) { return decoder.DecodeEcho(b); });
  }
  return 0;
}
