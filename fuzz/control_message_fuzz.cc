// Messages of the control plane: the first byte selects the kind. An accepted message survives a
// write and a read unchanged.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "wire/codec.h"

namespace {

using millrace::wire::Decoder;
using millrace::wire::Encoder;

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
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Decoder decoder;
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  switch (data[0] % 4) {
    case 0: Probe(bytes, [](auto b) { return decoder.DecodeToController(b); }); break;
    case 1: Probe(bytes, [](auto b) { return decoder.DecodeToWorker(b); }); break;
    case 2: Probe(bytes, [](auto b) { return decoder.DecodePeerMessage(b); }); break;
    default: Probe(bytes, [](auto b) { return decoder.DecodeHeartbeat(b); });
  }
  return 0;
}
