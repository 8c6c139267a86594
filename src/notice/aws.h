// AwsSource: EC2's instance metadata service, version 2: the interruption of a spot instance, the
// recommendation to rebalance, and scheduled maintenance. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "notice/source.h"

namespace millrace::notice {

class AwsSource : public MetadataSource {
 public:
  static constexpr Duration kPeriod = Duration::Seconds(5);
  static constexpr int kMaintenanceEvery = 12;  // periods: those events are known days before
  static constexpr Duration kInterruptionMost = Duration::Seconds(120);
  // Maintenance that is further ahead is a soft notice.
  static constexpr Duration kMaintenanceLead = Duration::Seconds(900);
  static constexpr size_t kEventsMax = 64;

  Question Next(const Moment& now) override;
  void OnAnswer(const Answer& answer, const Moment& now) override;
  std::vector<Notice> Notices() const override;

 private:
  enum Topic : uint8_t { kAction, kRebalance, kMaintenance, kTopics };
  struct Token {
    std::string text;
    Time renew_at;
  };

  void OnToken(const Answer& answer, const Moment& now);
  void OnTopic(const Answer& answer, const Moment& now);
  void EndTopic(const Moment& now, const std::string& complaint);

  std::optional<Token> token_;
  bool asked_token_ = false;    // the open question is for a token
  bool token_refused_ = false;  // a token was refused for this topic
  Topic topic_ = kAction;
  int round_ = 0;
  std::array<std::vector<Notice>, kTopics> notices_;  // by topic
};

// The answers of the three topics. kInvalidArgument: not what AWS documents.
Result<std::vector<Notice>> ReadAwsAction(const Answer& answer, const Moment& now);
Result<std::vector<Notice>> ReadAwsRebalance(const Answer& answer);
Result<std::vector<Notice>> ReadAwsMaintenance(const Answer& answer, const Moment& now);

}  // namespace millrace::notice
