#include "apps/common/slo_option.h"

#include <fmt/format.h>

#include "base/log.h"
#include "plan/io/quantity.h"

namespace millrace::apps {
namespace {

Status ReadPart(const std::string& text, LatencyLimits& limits) {
  const size_t at = text.find_first_of("=:");
  const std::string name = text.substr(0, at);
  if (at == std::string::npos || (name != "ttft" && name != "tpot" && name != "attainment")) {
    return InvalidArgument(
        fmt::format("must be ttft=TIME, tpot=TIME or attainment=SHARE, such as ttft=2s tpot=80ms "
                    "attainment=90%, got '{}'",
                    Printable(text, 60)));
  }
  const bool share = name == "attainment";
  const std::string value = text.substr(at + 1);
  if (text[at] == ':') {
    return InvalidArgument(fmt::format(
        "must be {0}={1} with its unit, such as {0}={2}{3}, got '{4}'", name,
        share ? "SHARE" : "TIME", Printable(value, 20), share ? "%" : "ms", Printable(text, 60)));
  }
  auto& target = share ? limits.attainment : name == "ttft" ? limits.ttft_s : limits.tpot_s;
  if (target) return InvalidArgument(fmt::format("has {} twice", name));
  auto number =
      plan::ParseQuantity(share ? plan::Quantity::kShare : plan::Quantity::kDuration, value);
  if (!number.ok()) return InvalidArgument(name + " " + number.status().message());
  target = *number;
  return OkStatus();
}

}  // namespace

Result<LatencyLimits> ParseSlo(const std::vector<std::string>& texts) {
  LatencyLimits limits;
  for (const std::string& text : texts) MR_RETURN_IF_ERROR(ReadPart(text, limits));
  return limits;
}

Option SloOption(LatencyLimits* target) {
  Option option;
  option.name = "slo";
  option.value_name = "LIMIT";
  option.arity = Arity::kMany;
  option.set = [target](const std::vector<std::string>& texts) {
    MR_ASSIGN_OR_RETURN(*target, ParseSlo(texts));
    return OkStatus();
  };
  return option;
}

Result<LatencyLimits> CompleteSlo(const LatencyLimits& given, const LatencyLimits& from_file) {
  LatencyLimits limits = given;
  if (!limits.ttft_s) limits.ttft_s = from_file.ttft_s;
  if (!limits.tpot_s) limits.tpot_s = from_file.tpot_s;
  if (!limits.attainment) limits.attainment = from_file.attainment;
  if (limits.any() || !limits.attainment) return limits;
  return InvalidArgument("--slo attainment needs a limit: add ttft=TIME or tpot=TIME");
}

}  // namespace millrace::apps
