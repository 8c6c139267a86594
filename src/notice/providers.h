// Provider: one kind of source that --notice-source can name, as a row of a table: its name and
// argument, how a machine of its kind is recognised, and what asks or looks. Another source is a
// row here, a value of NoticeSource and its own files. Pure, except for a few small files that are
// read; any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/notice.h"
#include "notice/source.h"

namespace millrace::notice {

using Environment = std::function<std::optional<std::string>(const std::string& name)>;

struct Machine {
  Environment environment;
  std::string dmi_folder = "/sys/class/dmi/id";
};

struct Provider {
  NoticeSource source;
  const char* argument = nullptr;  // "PATH" of file:PATH; null: the name stands alone

  // Of a metadata service, otherwise null.
  const char* company = nullptr;  // "Google Cloud"
  bool (*is_here)(const Machine& machine) = nullptr;
  std::vector<std::unique_ptr<MetadataSource>> (*ask)() = nullptr;
  const char* endpoint_variable =
      nullptr;                       // of the environment; null: the address is always the usual
  const char* endpoint_before = "";  // what is put before the variable's value

  // Of what is looked at on this machine, otherwise null.
  std::unique_ptr<LocalSource> (*look)(const std::string& argument) = nullptr;
};

// In the order in which they are listed and machines are recognised.
std::span<const Provider> Providers();
// REQUIRES: `source` has a row.
const Provider& ProviderOf(NoticeSource source);

// "auto, none, aws, ..., file:PATH or exec:CMD".
std::string SourceChoices();
// Those with a metadata service: "aws, gcp or azure", and "AWS, Google Cloud or Azure".
std::string MetadataNames();
std::string MetadataCompanies();

}  // namespace millrace::notice
