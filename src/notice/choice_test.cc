#include "notice/choice.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace millrace::notice {
namespace {

class Choice : public ::testing::Test {
 protected:
  Choice() {
    std::string path = std::filesystem::temp_directory_path() / "dmi-XXXXXX";
    MR_CHECK(mkdtemp(path.data()) != nullptr);
    machine.dmi_folder = path;
    machine.environment = [this](const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
  }
  ~Choice() override { std::filesystem::remove_all(machine.dmi_folder); }

  void Dmi(const std::string& name, const std::string& text) {
    std::ofstream(machine.dmi_folder + "/" + name) << text;
  }
  Result<Watched> Choose(const std::string& source, std::optional<Duration> grace = {},
                         const std::string& endpoint = "") {
    MR_ASSIGN_OR_RETURN(const SourceChoice choice, ParseSourceChoice(source));
    std::optional<net::Url> url;
    if (!endpoint.empty()) {
      MR_ASSIGN_OR_RETURN(url, ParseEndpoint(endpoint));
    }
    return ChooseSources(choice, grace, url, machine);
  }

  Machine machine;
  std::map<std::string, std::string> variables;
};

TEST_F(Choice, NothingIsFoundOnOtherMachines) {
  EXPECT_EQ(Choose("auto")->source, std::nullopt);
  Dmi("sys_vendor", "Dell Inc.\n");
  Dmi("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n");
  EXPECT_EQ(Choose("auto")->source, std::nullopt);
  Dmi("sys_vendor", "Microsoft Corporation\n");
  Dmi("chassis_asset_tag", "none\n");
  EXPECT_EQ(Choose("auto")->source, std::nullopt) << "another machine of Hyper-V";
  machine.dmi_folder = "/no/such/folder";
  EXPECT_EQ(Choose("auto")->source, std::nullopt);
  EXPECT_EQ(Choose("auto")->signal.source, NoticeSource::kSignal);
  EXPECT_EQ(Choose("auto")->signal.grace, std::nullopt);
}

TEST_F(Choice, CloudsAreKnownByTheirFirmware) {
  Dmi("sys_vendor", "Amazon EC2\n");
  EXPECT_EQ(Choose("auto")->source, NoticeSource::kAws);
  EXPECT_EQ(Choose("none")->source, std::nullopt);
  Dmi("sys_vendor", "Xen\n");
  Dmi("bios_version", "4.11.amazon\n");
  EXPECT_EQ(Choose("auto")->source, NoticeSource::kAws);
  Dmi("bios_version", "Google\n");
  Dmi("product_name", "Google Compute Engine\n");
  EXPECT_EQ(Choose("auto")->source, NoticeSource::kGcp);
  Dmi("product_name", "Virtual Machine\n");
  Dmi("sys_vendor", "Microsoft Corporation\n");
  Dmi("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n");
  EXPECT_EQ(Choose("auto")->source, NoticeSource::kAzure);
  EXPECT_EQ(Choose("auto")->endpoint.ToString(), "http://169.254.169.254/");
}

TEST_F(Choice, SupervisorsAreKnownByTheirEnvironment) {
  Dmi("sys_vendor", "Amazon EC2\n");
  variables["SLURM_JOB_ID"] = "17";
  variables["SLURM_JOB_END_TIME"] = "1800000100";
  EXPECT_EQ(Choose("auto")->signal.source, NoticeSource::kSlurm);
  EXPECT_EQ(Choose("auto")->signal.end, WallTime{1'800'000'100});
  EXPECT_EQ(Choose("auto")->source, NoticeSource::kAws) << "a cluster in a cloud";
  variables["SLURM_JOB_END_TIME"] = "later";
  EXPECT_EQ(Choose("auto")->signal.end, std::nullopt);
  variables["KUBERNETES_SERVICE_HOST"] = "10.0.0.1";
  EXPECT_EQ(Choose("auto")->signal.source, NoticeSource::kKubernetes);
  EXPECT_EQ(Choose("auto")->signal.grace, Duration::Seconds(30));
  EXPECT_EQ(Choose("auto", Duration::Seconds(120))->signal.grace, Duration::Seconds(120));
  EXPECT_EQ(Choose("auto")->source, std::nullopt) << "its node's notice comes as SIGTERM";
  EXPECT_EQ(Choose("none")->signal.source, NoticeSource::kSignal);
  variables.clear();
  EXPECT_EQ(Choose("kubernetes")->signal.grace, Duration::Seconds(30));
  EXPECT_EQ(Choose("slurm")->signal.source, NoticeSource::kSlurm);
}

TEST_F(Choice, WhatTheOperatorSays) {
  EXPECT_EQ(Choose("gcp")->source, NoticeSource::kGcp);
  EXPECT_EQ(Choose("file:/run/notice")->argument, "/run/notice");
  EXPECT_EQ(Choose("exec:watch -n 1 it")->argument, "watch -n 1 it");
  for (const char* text : {"", "amazon", "file", "file:", "exec:", "AWS", "aws ", "none,aws"}) {
    const auto choice = ParseSourceChoice(text);
    ASSERT_FALSE(choice.ok()) << text;
    EXPECT_NE(choice.status().message().find("file:PATH or exec:CMD"), std::string::npos);
  }
}

TEST_F(Choice, EndpointsComeFromTheOptionOrTheEnvironment) {
  variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1338";
  variables["GCE_METADATA_HOST"] = "metadata.google.internal";
  EXPECT_EQ(Choose("aws")->endpoint.port, 1338);
  EXPECT_EQ(Choose("gcp")->endpoint.host, "metadata.google.internal");
  EXPECT_EQ(Choose("azure")->endpoint.host, "169.254.169.254");
  EXPECT_EQ(Choose("aws", {}, "http://127.0.0.1:9")->endpoint.port, 9);
  for (const char* source :
       {"none", "kubernetes", "slurm", "file:/run/notice", "exec:it", "auto"}) {
    EXPECT_FALSE(Choose(source, {}, "http://127.0.0.1:9").ok()) << source;
  }
  variables["GCE_METADATA_HOST"] = "a b";
  EXPECT_NE(Choose("gcp").status().message().find("GCE_METADATA_HOST must be a URL"),
            std::string::npos);
  for (const char* url : {"", "127.0.0.1", "https://127.0.0.1", "http://a/?b"}) {
    EXPECT_FALSE(ParseEndpoint(url).ok()) << url;
  }
}

TEST(SignalNotice, EndsWithTheGraceOrTheJob) {
  const Moment now{Time{} + Duration::Seconds(50), WallTime{1'800'000'000}};
  const auto left = [&](const SignalSource& source) -> std::optional<int64_t> {
    const MachineNotice notice = SignalNotice(source, now);
    EXPECT_TRUE(notice.hard);
    if (!notice.deadline) return std::nullopt;
    return (*notice.deadline - now.time).ns / 1'000'000'000;
  };
  EXPECT_EQ(left({}), std::nullopt);
  EXPECT_EQ(left({.grace = Duration::Seconds(30)}), 29);
  EXPECT_EQ(left({.end = WallTime{1'800'000'120}}), 119);
  EXPECT_EQ(left({.grace = Duration::Seconds(30), .end = WallTime{1'800'000'120}}), 29);
  EXPECT_EQ(left({.grace = Duration::Seconds(300), .end = WallTime{1'800'000'120}}), 119);
  EXPECT_EQ(left({.end = WallTime{1'799'999'000}}), 1) << "overtime";
}

}  // namespace
}  // namespace millrace::notice
