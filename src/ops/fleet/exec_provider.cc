#include "ops/fleet/exec_provider.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/child_process.h"
#include "base/log.h"

namespace millrace::ops {
namespace {

constexpr int kProviderPollMs = 100;
constexpr int kProviderDepthMax = 8;
constexpr size_t kProviderShownBytes = 120;
constexpr char kListForm[] = R"(write {"machines": [{"id": "i-1", "worker": "name"}]})";

std::string Shown(const std::string& text) { return Printable(text, kProviderShownBytes); }

bool IsMachineName(const Json& json) {
  if (!json.is_string()) return false;
  const auto& text = json.get_ref<const std::string&>();
  return !text.empty() && text.size() <= kMachineNameBytesMax &&
         std::ranges::all_of(text, [](unsigned char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

Result<std::vector<cluster::ListedMachine>> ReadMachineList(const Json& answer) {
  const auto list = answer.find("machines");
  if (list == answer.end() || !list->is_array()) {
    return InvalidArgument(fmt::format("the provider printed no machine list: {}", kListForm));
  }
  std::vector<cluster::ListedMachine> machines;
  for (const Json& one : *list) {
    const Json id = one.is_object() ? one.value("id", Json()) : Json();
    const Json worker = one.is_object() ? one.value("worker", id) : Json();
    if (!IsMachineName(id) || !IsMachineName(worker)) {
      return InvalidArgument(
          fmt::format("machine {} has no id or no worker of 1 to {} printable characters: {}",
                      machines.size(), kMachineNameBytesMax, kListForm));
    }
    machines.push_back({id.get<std::string>(), worker.get<std::string>()});
  }
  return machines;
}

Result<std::optional<double>> ReadMachinePrice(const Json& answer) {
  const auto price = answer.find("price_usd_per_h");
  if (price == answer.end() || price->is_null()) return std::optional<double>();
  if (price->is_number()) return std::optional(price->get<double>());
  return InvalidArgument(R"(the price is no number: write {"price_usd_per_h": 0.35})");
}

Result<std::string> ExecProvider::Run(const std::string& request) {
  MR_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Spawn({"/bin/sh", "-c", command_}, {},
                                                              ChildOutput::kStdout, request));
  std::string output;
  bool too_much = false;
  const auto on_line = [&](std::string_view line) {
    too_much = too_much || output.size() + line.size() > kProviderAnswerBytesMax;
    if (!too_much) output += line;
  };
  const Time end = clock_.Now() + timeout_;
  while (true) {
    std::array<pollfd, 2> waits{{{.fd = child.end_fd(), .events = POLLIN, .revents = 0},
                                 {.fd = child.output_fd(), .events = POLLIN, .revents = 0}}};
    poll(waits.data(), waits.size(), kProviderPollMs);
    if (waits[0].revents != 0) break;
    child.ReadLines(on_line);
    if (too_much) break;
    if (stop_) return Cancelled("the controller ends");
    if (clock_.Now() >= end) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("'{}' has not ended after {:g} s, and was killed: raise timeout",
                                Shown(command_), timeout_.seconds()));
    }
  }
  if (too_much) {
    return InvalidArgument(fmt::format("'{}' writes more than {} bytes to stdout", Shown(command_),
                                       kProviderAnswerBytesMax));
  }
  const int code = child.Reap(on_line);
  if (code != 0) {
    const auto answer = ParseJson(output, kProviderDepthMax);
    const std::string why = answer.ok() && answer->is_object() && answer->contains("error")
                                ? ": " + Shown(DumpJson((*answer)["error"]))
                                : "";
    return Unavailable(fmt::format("'{}' ended with exit code {}{}", Shown(command_), code, why));
  }
  return output;
}

Result<Json> ExecProvider::Call(Json request) {
  request["kind"] = kind_;
  MR_ASSIGN_OR_RETURN(const std::string output, Run(DumpJson(request) + "\n"));
  const auto fail = [&](const std::string& why) {
    return InvalidArgument(
        fmt::format("'{}' answers with '{}': {}", Shown(command_), Shown(output), why));
  };
  const bool nothing = output.find_first_not_of(" \t\r") == std::string::npos;
  const auto answer = ParseJson(nothing ? "{}" : output, kProviderDepthMax);
  if (!answer.ok()) return fail(answer.status().message());
  if (!answer->is_object()) return fail("expected one JSON object");
  if (const auto error = answer->find("error"); error != answer->end()) {
    return Unavailable(fmt::format(
        "'{}' fails: {}", Shown(command_),
        error->is_string() ? Shown(error->get<std::string>()) : Shown(DumpJson(*error))));
  }
  return *answer;
}

Result<std::vector<cluster::ListedMachine>> ExecProvider::List() {
  MR_ASSIGN_OR_RETURN(const Json answer, Call({{"op", "list"}}));
  const auto machines = ReadMachineList(answer);
  if (!machines.ok()) return machines.status().WithContext(Shown(command_));
  return machines;
}

Status ExecProvider::Acquire(int count) {
  return Call({{"op", "acquire"}, {"count", count}}).status();
}

Status ExecProvider::Release(const std::string& id) {
  return Call({{"op", "release"}, {"machine", id}}).status();
}

Result<std::optional<double>> ExecProvider::Price() {
  MR_ASSIGN_OR_RETURN(const Json answer, Call({{"op", "price"}}));
  const auto price = ReadMachinePrice(answer);
  if (!price.ok()) return price.status().WithContext(Shown(command_));
  return price;
}

}  // namespace millrace::ops
