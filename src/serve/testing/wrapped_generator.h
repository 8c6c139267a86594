// WrappedGenerator: forwards every call to another generator, for tests that override or observe
// some of them. Declare it before its TestServer, whose destructor drains it; the server owns the
// inner generator.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "cluster/generator.h"

namespace millrace::serve {

class WrappedGenerator : public cluster::Generator {
 public:
  Result<RequestId> Submit(cluster::GenerationRequest request, cluster::OutputSink sink) override {
    return inner->Submit(std::move(request), std::move(sink));
  }
  uint64_t DrawnSeed(RequestId id) const override { return inner->DrawnSeed(id); }
  void Abort(RequestId request, std::optional<int> index) override { inner->Abort(request, index); }
  cluster::GeneratorStats Stats() const override { return inner->Stats(); }
  std::optional<sched::RequestInfo> Inspect(RequestId request) const override {
    return inner->Inspect(request);
  }
  std::optional<TimeAccount> Account(RequestId request) const override {
    return inner->Account(request);
  }
  std::vector<sched::RequestInfo> InspectAll() const override { return inner->InspectAll(); }
  bool Drain(Duration limit) override { return inner->Drain(limit); }

  cluster::Generator* inner = nullptr;
};

}  // namespace millrace::serve
