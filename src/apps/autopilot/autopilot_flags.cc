#include "apps/autopilot/autopilot_flags.h"

#include "apps/cli/parse.h"

namespace millrace::apps {
namespace {

constexpr double kAutopilotSecondsMax = 86400;

}  // namespace

void AddAutopilotOptions(Command& command, AutopilotFlags* flags) {
  constexpr char kGroup[] = "Autopilot";
  command.Add(kGroup,
              ChoiceOption<AutopilotChoice>("autopilot", &flags->choice,
                                            {{"off", AutopilotChoice::kOff},
                                             {"advise", AutopilotChoice::kAdvise},
                                             {"act", AutopilotChoice::kAct}}),
              "Plan again when the load shifts, when workers come, go or have notice, and when "
              "--slo is missed. advise: say what would be better (`millrace status`, `millrace "
              "decisions`); act: change to it, and back if it does worse than forecast");
  command.Add(kGroup,
              RealOption("autopilot-window", "SECONDS", &flags->window_s, 1, kAutopilotSecondsMax),
              "The load has shifted if it differs in two such windows in a row");
  command.Add(
      kGroup,
      RealOption("autopilot-horizon", "SECONDS", &flags->horizon_s, 1, kAutopilotSecondsMax),
      "A change must gain more within this time than it delays");
  command.Add(kGroup,
              RealOption("autopilot-verify", "SECONDS", &flags->verify_s, 1, kAutopilotSecondsMax),
              "How long a new plan is measured before it is compared with its forecast");
  command.Add(kGroup, RealOption("autopilot-margin", "SHARE", &flags->margin, 0.01, 1),
              "A new plan is taken back if the share of good answers is lower than forecast, and "
              "lower than before, by more than this");
}

Status ValidateAutopilot(const AutopilotFlags& flags, const std::set<std::string>& given) {
  if (flags.choice != AutopilotChoice::kOff) return OkStatus();
  return RefuseGiven(
      given, {"autopilot-window", "autopilot-horizon", "autopilot-verify", "autopilot-margin"},
      "needs --autopilot advise or act");
}

cluster::AutopilotOptions AutopilotOptionsOf(const AutopilotFlags& flags,
                                             const LatencyLimits& limits) {
  return {.mode = flags.choice == AutopilotChoice::kAct ? cluster::AutopilotMode::kAct
                                                        : cluster::AutopilotMode::kAdvise,
          .limits = limits,
          .window = Duration::Seconds(flags.window_s),
          .horizon = Duration::Seconds(flags.horizon_s),
          .verify = Duration::Seconds(flags.verify_s),
          .margin = flags.margin};
}

}  // namespace millrace::apps
