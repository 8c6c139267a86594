#include "cluster/store/open_store.h"

#include <fmt/format.h>

#include "cluster/store/sqlite_store.h"

namespace millrace::cluster {
namespace {

constexpr std::string_view kEtcd = "etcd://";
constexpr std::string_view kSqlite = "sqlite:";

std::vector<std::string> SplitAtCommas(std::string_view list) {
  std::vector<std::string> parts;
  while (true) {
    const size_t comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

Result<std::unique_ptr<Store>> OpenStore(const std::string& address, const std::string& cluster,
                                         const EtcdTls& tls, const Clock& clock) {
  const std::string_view rest = address;
  if (rest.starts_with(kEtcd)) {
    return OpenEtcdStore(
        {.endpoints = SplitAtCommas(rest.substr(kEtcd.size())), .cluster = cluster, .tls = tls});
  }
  if (rest.starts_with(kSqlite) && rest.size() > kSqlite.size()) {
    if (!tls.ca_file.empty() || !tls.cert_file.empty() || !tls.key_file.empty()) {
      return InvalidArgument(
          "TLS applies only to an etcd store; leave out the TLS files for sqlite");
    }
    return OpenSqliteStore({.folder = std::string(rest.substr(kSqlite.size())), .cluster = cluster},
                           clock);
  }
  return InvalidArgument(fmt::format(
      "a store address is etcd://HOST:PORT[,HOST:PORT...] or sqlite:FOLDER, not '{}'", address));
}

}  // namespace millrace::cluster
