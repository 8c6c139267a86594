// AdminClient: how commands ask a controller over HTTP (/cluster of docs/http-api.md), and the
// options by which they find it. Without a key it is asked on its unix socket, as the user who
// started it on this machine; with one at the address of its --admin-listen. One thread.
#pragma once

#include <memory>
#include <string>

#include "apps/cli/command.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http_client.h"

namespace millrace::apps {

struct AdminFlags {
  std::string base_url, admin_key, ca_file;
};
// The group "Controller". `flags` outlives the command.
void AddAdminOptions(Command& command, AdminFlags* flags);

class AdminClient {
 public:
  static Result<AdminClient> Create(const AdminFlags& flags);

  // The object that comes back. An answer that is no success becomes a Status with the server's own
  // words: kNotFound, kFailedPrecondition, kUnauthenticated, kInvalidArgument, kUnavailable.
  Result<Json> Get(const std::string& path) { return Call("GET", path, ""); }
  Result<Json> Post(const std::string& path, const Json& body);

 private:
  AdminClient() = default;
  Result<Json> Call(const std::string& method, const std::string& path, std::string body);

  net::Url base_;
  std::string admin_key_;  // empty: the unix socket of the port in base_
  std::unique_ptr<net::HttpClient> http_;
};

}  // namespace millrace::apps
