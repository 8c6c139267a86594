// The files of the Helix artifact: a cluster, a placement and a capacity table, from any text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "plan/io/helix_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto cluster = plan::ParseHelixCluster(text, "c.ini"); cluster.ok()) {
    for (const LinkSpec& link : cluster->links) {
      MR_CHECK(link.from <= cluster->coordinator() && link.to <= cluster->coordinator());
    }
  }
  if (const auto placement = plan::ParseHelixPlacement(text, "p.ini"); placement.ok()) {
    for (const LayerRange& layers : *placement) {
      MR_CHECK(layers.begin >= 0 && layers.size() >= 0 && layers.end <= plan::kHelixLayersMax);
    }
  }
  if (const auto capacity = plan::ParseHelixCapacity(text, "k.txt"); capacity.ok()) {
    const size_t side = capacity->nodes.size() + 1;
    MR_CHECK(capacity->link_tokens_per_s.size() == side * side);
  }
  return 0;
}
