#include "cluster/fleet/provider_troubles.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace millrace::cluster {
namespace {

constexpr Duration kBackOffFirst = Duration::Seconds(5), kBackOffMost = Duration::Seconds(300);
constexpr size_t kTroubleBytes = 200;

}  // namespace

std::optional<std::string> ProviderTroubles::Failed(ProviderCall call, const std::string& text,
                                                    Time now) {
  std::string shown = Printable(text, kTroubleBytes);
  Trouble& trouble = all_[static_cast<size_t>(call)];
  const bool known =
      !trouble.text.empty() || std::ranges::find(all_, shown, &Trouble::text) != all_.end();
  trouble.text = std::move(shown);
  Duration pause = kBackOffFirst;
  for (int i = 0; i < trouble.failures && pause < kBackOffMost; ++i) pause = pause + pause;
  pause = std::min(pause, kBackOffMost);
  ++trouble.failures;
  trouble.until = now + pause;
  if (known) return std::nullopt;
  return fmt::format(
      "{}; it is tried again, at most {:.0f} s later, and the cluster goes on with "
      "the machines that it has",
      trouble.text, kBackOffMost.seconds());
}

std::optional<std::string> ProviderTroubles::Succeeded(ProviderCall call) {
  if (!Fails(call)) return std::nullopt;
  all_[static_cast<size_t>(call)] = {};
  if (!Text().empty()) return std::nullopt;
  return "the provider does again what it is asked";
}

std::string ProviderTroubles::Text() const {
  std::string text;
  for (const Trouble& trouble : all_) {
    if (!trouble.text.empty()) text = trouble.text;
  }
  return text;
}

}  // namespace millrace::cluster
