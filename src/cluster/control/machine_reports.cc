#include "cluster/control/machine_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "cluster/control/parts/edge_flows.h"
#include "cost/profile.h"

namespace millrace::cluster {
namespace {

Result<cost::Profile> ReadWorkersProfile(const std::string& text, int num_layers) {
  MR_ASSIGN_OR_RETURN(cost::Profile profile, cost::ParseProfile(text, "the profile"));
  if (profile.num_layers != num_layers) {
    return InvalidArgument(fmt::format("it is of {}, which has {} layers; the model has {}",
                                       Printable(profile.model), profile.num_layers, num_layers));
  }
  MR_RETURN_IF_ERROR(cost::CheckPlausible(profile));
  return profile;
}

}  // namespace

MachineReports::MachineReports(MachineReportsOptions options, Membership& members, Outbox& outbox)
    : num_layers_(options.num_layers),
      max_batched_tokens_(options.max_batched_tokens),
      members_(members),
      outbox_(outbox) {
  if (options.link_probes) probes_.emplace(*options.link_probes);
}

void MachineReports::WorkerJoined(const Membership::Worker& worker) {
  if (probes_ && worker.join.identity.protocol.newest >= kProtocolProfiles) {
    probes_->Add(worker.id);
  }
}

void MachineReports::WorkerLost(WorkerId worker) {
  if (probes_) probes_->Remove(worker);
}

void MachineReports::On(Membership::Worker& from, const WorkerProfile& message, Time) {
  auto profile = ReadWorkersProfile(message.text, num_layers_);
  if (profile.ok()) {
    // A slow worker is not stuck in its first full step.
    const double full_s = cost::PromptSeconds(*profile, max_batched_tokens_);
    const auto full_ms = static_cast<int64_t>(full_s * 1e3);
    from.longest_batch_ms = std::max(from.longest_batch_ms, full_ms);
    from.profile = std::make_shared<const cost::Profile>(std::move(*profile));
    return;
  }
  ++profiles_refused_;
  MR_LOG(warn, "the profile of worker {} is not used: {}", Printable(from.join.name),
         profile.status().message());
}

void MachineReports::On(Membership::Worker& from, const MayLeave& message, Time now) {
  TakeNotice(from, {message.origin, false}, message.in, now);
}

void MachineReports::TakeNotice(Membership::Worker& from, MachineNotice notice,
                                std::optional<Duration> in, Time now) {
  if (in) notice.deadline = now + *in;
  const bool known =
      from.notice && from.notice->origin == notice.origin && from.notice->hard == notice.hard;
  from.notice = notice;
  if (known) return;
  ++notices_[notice.origin];
  MR_LOG(info, "worker {} {}{} ({})", Printable(from.join.name),
         notice.hard ? "leaves" : "may leave", in ? fmt::format(" in {:.0f} s", in->seconds()) : "",
         ToText(notice.origin));
}

void MachineReports::WithdrawNotice(Membership::Worker& from) {
  if (!from.notice) return;
  MR_LOG(info, "the notice of worker {} was withdrawn ({})", Printable(from.join.name),
         ToText(from.notice->origin));
  from.notice.reset();
}

void MachineReports::On(Membership::Worker& from, const LinkProbed& message, Time now) {
  const Status taken = probes_ ? probes_->Take(from.id, message, now) : NotFound("not asked for");
  if (taken.ok()) {
    ++links_probed_;
  } else if (taken.code() == StatusCode::kNotFound) {
    ++stale_;
  } else {
    ++probes_failed_;
    MR_LOG(info, "worker {} could not measure a link: {}", Printable(from.join.name),
           Printable(taken.message()));
  }
}

void MachineReports::Tick(bool busy, Time now) {
  const auto probe = probes_ ? probes_->Next(busy, now) : std::nullopt;
  if (!probe) return;
  const auto& [from, to] = probe->pair;
  ProbeLink order{probe->id};
  if (from && to) order.from = members_.at(*from).address;
  if (!from) order.link = ProbedLink::kFromController;
  if (!to) order.link = ProbedLink::kToController;
  outbox_.Send(probe->by(), std::move(order));
}

std::vector<LinkStatus> MachineReports::Links(Time now) const {
  std::vector<LinkStatus> links;
  if (!probes_) return links;
  const auto name = [&](const LinkProbes::End& end) {
    return end ? members_.at(*end).join.name : EdgeFlows::kCoordinator;
  };
  for (const auto& [pair, link] : probes_->links()) {
    links.push_back(
        {name(pair.first), name(pair.second), link.latency_s, link.bytes_per_s, now - link.at});
  }
  return links;
}

}  // namespace millrace::cluster
