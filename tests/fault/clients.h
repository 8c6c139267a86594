// Clients: the requests and their delivered output, checked against the reference. They outlive
// controllers: delivered output cannot be taken back. They are also the journal, which is the same
// list. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/control/controller_core.h"
#include "tests/fault/scenario.h"
#include "tests/fault/world.h"

namespace millrace::sim::fault {

class Clients {
 public:
  Clients(const Scenario& scenario, World& world);

  // Ids count from 1 by test request.
  static RequestId IdOf(size_t test_request) { return RequestId(test_request + 1); }
  // The request for a new controller: includes the output that was already delivered.
  sched::NewRequest RequestOf(size_t test_request) const;
  // The fingerprint of its newest token; empty: it has none.
  std::string ComputedBy(size_t test_request) const;
  void Accepted(size_t test_request) { requests_[test_request].accepted = true; }
  void Refused(size_t test_request, const Status& status);
  void Aborted(size_t test_request) { requests_[test_request].aborted = true; }
  void Take(const RequestOutput& output, Time now, uint64_t pipelines_lost);

  size_t size() const { return requests_.size(); }
  bool accepted(size_t test_request) const { return requests_[test_request].accepted; }
  bool ended(size_t test_request) const { return requests_[test_request].open == 0; }
  size_t open() const { return open_; }  // requests that have not ended
  Time last_output() const { return last_output_; }
  uint64_t tokens() const { return tokens_; }
  uint64_t errors() const { return errors_; }
  // For a request that is still open; for the report.
  std::string Describe(size_t test_request) const;

 private:
  struct Sequence {
    std::vector<TokenId> expected;
    size_t delivered = 0;
    std::optional<FinishReason> finish;
  };
  struct Request {
    std::shared_ptr<const std::vector<TokenId>> prompt;
    std::shared_ptr<const SamplingParams> params;
    uint64_t seed = 0;
    std::vector<Sequence> sequences;
    int open = 0;
    std::optional<int> bit_class;  // of its newest token
    bool accepted = false, aborted = false;
  };

  void ContinuesIn(Request& request, const std::string& fingerprint);
  bool HasVector(const Request& request, const RequestOutput& output) const;
  void CheckEnd(const Request& request, const Sequence& sequence, const RequestOutput& output,
                uint64_t pipelines_lost);

  const Scenario& scenario_;
  World& world_;
  std::vector<Request> requests_;
  size_t open_ = 0;
  Time last_output_;
  uint64_t tokens_ = 0, errors_ = 0;
};

}  // namespace millrace::sim::fault
