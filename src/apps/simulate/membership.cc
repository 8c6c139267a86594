#include "apps/simulate/membership.h"

#include "base/file.h"
#include "sim/availability.h"

namespace millrace::apps {
namespace {

constexpr double kSecondsMax = 86400;

}  // namespace

void AddMembershipOptions(Command& command, const char* group, MembershipFlags* flags) {
  Option file = TextOption("availability", "FILE", &flags->availability);
  file.kind = ValueKind::kFile;
  command.Add(
      group, file,
      "Machines that come and go, each with one instance or the stages of a plan's node: a trace "
      "of events or of counts "
      "(docs/simulation.md has the formats)");
  command.Add(group, RealOption("availability-unit", "SECONDS", &flags->unit_s, 1e-3, kSecondsMax),
              "What the times of a trace of counts are in; those of events are milliseconds");
  command.Add(group, RealOption("notice", "SECONDS", &flags->notice_s, 0, kSecondsMax),
              "How long before a machine goes it is known");
  command.Add(group, RealOption("load-time", "SECONDS", &flags->load_s, 0, kSecondsMax),
              "From a machine's coming until it takes requests; those of the beginning take them "
              "at once");
  command.Add(
      group,
      ChoiceOption<sim::OnNotice>(
          "on-notice", &flags->on_notice,
          {{"move", sim::OnNotice::kMove}, {"finish", sim::OnNotice::kFinish}}),
      "What becomes of requests on a machine that will go. move: they go on elsewhere with their "
      "KV, over --kv-bandwidth (not with --plan); finish: they run to its end. What is left is "
      "computed anew");
}

Result<Membership> LoadMembership(const MembershipFlags& flags, std::optional<int> instances) {
  MR_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(flags.availability, sim::kAvailabilityBytesMax));
  auto trace = sim::ParseAvailability(text, flags.unit_s);
  if (!trace.ok()) return trace.status().WithContext(flags.availability);
  Membership out;
  out.instances = instances.value_or(trace->most_alive);
  out.on_notice = flags.on_notice;
  out.changes = sim::MembershipOf(
      *trace, {.instances = out.instances, .notice_s = flags.notice_s, .load_s = flags.load_s});
  return out;
}

}  // namespace millrace::apps
