// Any text is a workload with ordered requests, or an error with the place.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "sim/load/workload_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  using namespace millrace::sim;
  constexpr int kRequestsLooked = 200;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto spec =
      ParseWorkloadYaml(text, "w.yaml", [](const std::string& path) -> Result<std::string> {
        if (path == "r.csv") return std::string("0.5,0,2\n3");
        if (path != "t.csv") return NotFound("no such file");
        return std::string("arrival_s,prompt_tokens,output_tokens\n1,2,3\n4,5,6\n");
      });
  if (!spec.ok()) {
    MR_CHECK(spec.status().message().starts_with("w.yaml:"));
    return 0;
  }
  MR_CHECK(!spec->Describe().empty());
  const auto workload = spec->Make(1);
  Time last;
  for (int i = 0; i < kRequestsLooked; ++i) {
    const auto request = workload->Next();
    if (!request) break;
    MR_CHECK(request->arrival >= last && request->prompt_tokens >= 1 &&
             request->output_tokens >= 1);
    last = request->arrival;
  }
  return 0;
}
