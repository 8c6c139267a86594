// Any text is either a cluster whose links join its own ends, or an error with the place.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "plan/io/cluster_yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto cluster = plan::ParseClusterYaml(text, "c.yaml");
  if (!cluster.ok()) {
    MR_CHECK(cluster.status().message().starts_with("c.yaml:"));
    return 0;
  }
  for (const LinkSpec& link : cluster->links) {
    MR_CHECK(link.from >= 0 && link.from <= cluster->coordinator());
    MR_CHECK(link.to >= 0 && link.to <= cluster->coordinator() && link.to != link.from);
    MR_CHECK(link.bytes_per_s > 0 && link.latency >= Duration());
  }
  MR_CHECK(!plan::FirstCutOffNode(*cluster));
  return 0;
}
