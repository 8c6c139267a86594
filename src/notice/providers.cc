#include "notice/providers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "notice/aws.h"
#include "notice/azure.h"
#include "notice/exec_source.h"
#include "notice/file_source.h"
#include "notice/gcp.h"

namespace millrace::notice {
namespace {

constexpr size_t kDmiBytesMax = 256;
// Azure's virtual machines have this asset tag; other machines of Hyper-V do not.
constexpr char kAzureTag[] = "7783-7084-3265-9085-8269-3286-77";

std::string ReadDmi(const Machine& machine, const char* name) {
  std::ifstream file(machine.dmi_folder + "/" + name);
  std::string line(kDmiBytesMax, 0);
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<size_t>(file.gcount()));
  return line.substr(0, line.find('\n'));
}

bool IsAws(const Machine& machine) {
  return ReadDmi(machine, "sys_vendor") == "Amazon EC2" ||
         ReadDmi(machine, "bios_vendor") == "Amazon EC2" ||
         ReadDmi(machine, "bios_version").find("amazon") != std::string::npos;
}

bool IsGcp(const Machine& machine) {
  return ReadDmi(machine, "product_name") == "Google Compute Engine";
}

bool IsAzure(const Machine& machine) {
  return ReadDmi(machine, "sys_vendor") == "Microsoft Corporation" &&
         ReadDmi(machine, "chassis_asset_tag") == kAzureTag;
}

using Asking = std::vector<std::unique_ptr<MetadataSource>>;

Asking AskAws() {
  Asking asking;
  asking.push_back(std::make_unique<AwsSource>());
  return asking;
}

Asking AskGcp() {
  Asking asking;
  asking.push_back(std::make_unique<GcpSource>(GcpSource::Value::kPreempted));
  asking.push_back(std::make_unique<GcpSource>(GcpSource::Value::kMaintenance));
  return asking;
}

Asking AskAzure() {
  Asking asking;
  asking.push_back(std::make_unique<AzureSource>());
  return asking;
}

template <typename T>
std::unique_ptr<LocalSource> LookAt(const std::string& argument) {
  return std::make_unique<T>(argument);
}

constexpr Provider kProviders[] = {
    {.source = NoticeSource::kAws,
     .company = "AWS",
     .is_here = IsAws,
     .ask = AskAws,
     .endpoint_variable = "AWS_EC2_METADATA_SERVICE_ENDPOINT"},
    {.source = NoticeSource::kGcp,
     .company = "Google Cloud",
     .is_here = IsGcp,
     .ask = AskGcp,
     .endpoint_variable = "GCE_METADATA_HOST",
     .endpoint_before = "http://"},
    {.source = NoticeSource::kAzure, .company = "Azure", .is_here = IsAzure, .ask = AskAzure},
    {.source = NoticeSource::kKubernetes},
    {.source = NoticeSource::kSlurm},
    {.source = NoticeSource::kFile, .argument = "PATH", .look = LookAt<FileSource>},
    {.source = NoticeSource::kExec, .argument = "CMD", .look = LookAt<ExecSource>},
};

// "a, b or c".
std::string Choices(const std::vector<std::string>& words) {
  if (words.size() < 2) return fmt::format("{}", fmt::join(words, ""));
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

}  // namespace

std::span<const Provider> Providers() { return kProviders; }

const Provider& ProviderOf(NoticeSource source) {
  const auto* found = std::find_if(std::begin(kProviders), std::end(kProviders),
                                   [&](const Provider& row) { return row.source == source; });
  MR_CHECK(found != std::end(kProviders)) << "no row for " << NoticeSourceName(source);
  return *found;
}

std::string SourceChoices() {
  std::vector<std::string> words{"auto", "none"};
  for (const Provider& row : kProviders) {
    words.push_back(row.argument == nullptr
                        ? std::string(NoticeSourceName(row.source))
                        : fmt::format("{}:{}", NoticeSourceName(row.source), row.argument));
  }
  return Choices(words);
}

std::string MetadataNames() {
  std::vector<std::string> words;
  for (const Provider& row : kProviders) {
    if (row.ask != nullptr) words.emplace_back(NoticeSourceName(row.source));
  }
  return Choices(words);
}

std::string MetadataCompanies() {
  std::vector<std::string> words;
  for (const Provider& row : kProviders) {
    if (row.ask != nullptr) words.emplace_back(row.company);
  }
  return Choices(words);
}

}  // namespace millrace::notice
