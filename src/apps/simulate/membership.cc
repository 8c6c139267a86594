#include "apps/simulate/membership.h"

#include <fmt/format.h>

#include "base/file.h"
#include "sim/load/availability.h"

namespace millrace::apps {
namespace {

constexpr double kSecondsMax = 86400;
constexpr double kUnitS = 1, kNoticeS = 30, kLoadS = 30;

}  // namespace

void AddMembershipOptions(Command& command, const char* group, MembershipFlags* flags) {
  Option file = TextOption("availability", "FILE", &flags->availability);
  file.kind = ValueKind::kFile;
  command.Add(
      group, file,
      "Machines that come and go, each with one instance or the stages of a plan's node: a trace "
      "of events or of counts (formats in docs/simulation.md)");
  command.Add(group, RealOption("availability-unit", "SECONDS", &flags->unit_s, 1e-3, kSecondsMax),
              "Time unit of a trace of counts; a trace of events is in milliseconds [default: 1]");
  command.Add(group, RealOption("notice", "SECONDS", &flags->notice_s, 0, kSecondsMax),
              "Time between the notice and the loss of a machine [default: 30]");
  command.Add(
      group, RealOption("load-time", "SECONDS", &flags->load_s, 0, kSecondsMax),
      "Time from a machine's arrival until it takes requests; machines present at the start "
      "take them at once. With --autopilot also the time to load layers of another plan "
      "[default: 30]");
  command.Add(
      group,
      ChoiceOption<sim::OnNotice>(
          "on-notice", &flags->on_notice,
          {{"move", sim::OnNotice::kMove}, {"finish", sim::OnNotice::kFinish}}),
      "What a machine does under notice. move: it tells the controller; if others can serve its "
      "requests, those that do not end in time move with their KV. finish: it tells nobody and "
      "serves until its loss. The remaining requests are recomputed [default: move]");
}

Duration ChangeLoadTime(const MembershipFlags& flags) {
  return Duration::Seconds(flags.load_s.value_or(kLoadS));
}

Status ValidateMembership(const MembershipFlags& flags, bool plan_changes) {
  if (!flags.availability.empty()) return OkStatus();
  const char* flag = flags.notice_s                  ? "--notice"
                     : flags.load_s && !plan_changes ? "--load-time"
                     : flags.on_notice               ? "--on-notice"
                     : flags.unit_s                  ? "--availability-unit"
                                                     : nullptr;
  if (flag == nullptr) return OkStatus();
  return InvalidArgument(
      fmt::format("{} applies only to machines that come and go; give their trace with "
                  "--availability FILE, or leave it out",
                  flag));
}

Result<Membership> LoadMembership(const MembershipFlags& flags, std::optional<int> instances) {
  MR_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(flags.availability, sim::kAvailabilityBytesMax));
  auto trace = sim::ParseAvailability(text, flags.unit_s.value_or(kUnitS));
  if (!trace.ok()) return trace.status().WithContext(flags.availability);
  Membership out;
  out.instances = instances.value_or(trace->most_alive);
  out.on_notice = flags.on_notice.value_or(sim::OnNotice::kMove);
  out.changes = sim::MembershipOf(*trace, {.instances = out.instances,
                                           .notice_s = flags.notice_s.value_or(kNoticeS),
                                           .load_s = flags.load_s.value_or(kLoadS)});
  return out;
}

}  // namespace millrace::apps
