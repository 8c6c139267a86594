// AzureSource: Azure's Scheduled Events for this virtual machine. Every machine of a scale set sees
// the events of all, so the machine asks for its own name first. Once the worker has handed over
// everything, an event that takes only this machine away is acknowledged, which starts it. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "notice/source.h"

namespace millrace::notice {

// An event that concerns this machine.
struct AzureEvent {
  Notice notice;
  std::string id;
  bool may_start = false;  // only this machine is taken away, and the event has not started
};

class AzureSource : public MetadataSource {
 public:
  static constexpr Duration kPeriod = Duration::Seconds(1);
  // The first question for events enables the service.
  static constexpr Duration kFirstAnswer = Duration::Seconds(130);
  static constexpr Duration kPreemptionMost = Duration::Seconds(30);
  static constexpr Duration kOthersMost = Duration::Seconds(900);
  static constexpr size_t kEventsMax = 256, kNamesMax = 4096;
  static constexpr int kStartTriesMax = 3;

  Question Next(const Moment& now) override;
  void OnAnswer(const Answer& answer, const Moment& now) override;
  std::vector<Notice> Notices() const override;
  void SetDrained(bool drained) override { drained_ = drained; }

 private:
  enum class Asked : uint8_t { kName, kEvents, kStart };

  const AzureEvent* ToStart() const;  // null: none
  void OnName(const Answer& answer, const Moment& now);
  void OnEvents(const Answer& answer, const Moment& now);
  void OnStart(const Answer& answer, const Moment& now);

  Asked asked_ = Asked::kName;
  std::string name_;  // of this machine; "": not known yet
  bool enabled_ = false;
  bool drained_ = false;
  std::vector<AzureEvent> events_;
  std::string starting_;  // the event of the open question
  int start_tries_ = 0;
  std::set<std::string> started_;  // events that were acknowledged, or could not be
};

// The events for the machine of that name. kInvalidArgument: not what Azure documents.
Result<std::vector<AzureEvent>> ReadAzureEvents(const Answer& answer, const std::string& name,
                                                const Moment& now);

}  // namespace millrace::notice
