// Any text is a plan that survives a write and a read unchanged, or an error with the place. The
// same holds for plans whose stages name workers, as an operator applies them and the store keeps
// them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "plan/io/plan_yaml.h"

namespace {

// The fingerprint is that of the corpus' plan.
millrace::ClusterSpec TwoNodes() {
  millrace::ClusterSpec cluster;
  cluster.name = "two";
  cluster.nodes = {{.name = "a", .device = "l4"}, {.name = "b", .device = "t4"}};
  return cluster;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  static const ClusterSpec cluster = TwoNodes();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto applied = plan::ParseWorkerPlan(text, "p.yaml");
  MR_CHECK(applied.ok() || applied.status().message().starts_with("p.yaml:"));
  const auto read = plan::ParsePlanYaml(text, "p.yaml", cluster);
  if (!read.ok()) {
    MR_CHECK(read.status().message().starts_with("p.yaml:"));
    return 0;
  }
  const std::string written = plan::WritePlanYaml(*read, cluster);
  const auto again = plan::ParsePlanYaml(written, "p.yaml", cluster);
  MR_CHECK(again.ok()) << again.status().message();
  MR_CHECK(plan::WritePlanYaml(*again, cluster) == written);
  return 0;
}
