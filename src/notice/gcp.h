// GcpSource: one value of Google Compute Engine's metadata server, followed by long polls: whether
// the instance was preempted, or what maintenance of its host means for it. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "notice/source.h"

namespace millrace::notice {

class GcpSource : public MetadataSource {
 public:
  enum class Value : uint8_t { kPreempted, kMaintenance };

  static constexpr Duration kLongPoll = Duration::Seconds(60);
  static constexpr Duration kPause = Duration::Seconds(1);  // between answers that bring no change
  // From the notice to the end; the server does not name it.
  static constexpr Duration kPreemptionMost = Duration::Seconds(30);
  static constexpr Duration kMaintenanceMost = Duration::Seconds(60);

  explicit GcpSource(Value value) : value_(value) {}

  Question Next(const Moment& now) override;
  void OnAnswer(const Answer& answer, const Moment& now) override;
  std::vector<Notice> Notices() const override { return notices_; }

 private:
  std::string Target() const;

  const Value value_;
  std::optional<std::string> etag_;  // of the latest answer; unset: read without waiting
  uint64_t changes_ = 0;
  std::string latest_;
  std::vector<Notice> notices_;
};

// What a value means. kInvalidArgument: not what Google documents. `id` names the change.
Result<std::vector<Notice>> ReadGcpValue(GcpSource::Value value, const std::string& text,
                                         const std::string& id, const Moment& now);

}  // namespace millrace::notice
