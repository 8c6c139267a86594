// AdminClient: calls a controller's admin routes over HTTP (/cluster of docs/http-api.md). The
// options in AdminFlags select the controller. Without a key the client uses the controller's unix
// socket on this machine, as the user who started it; with a key, the address of its
// --admin-listen. Owned by a command; one thread.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "apps/cli/command.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http/http_client.h"

namespace millrace::apps {

struct AdminFlags {
  std::string base_url, admin_key, ca_file;
  const char* url_option = "--base-url";  // as help and errors name it
  std::set<std::string> given;            // options on the command line
};
// The group "Controller". `flags` must outlive the command. Sets the command's on_given.
void AddAdminOptions(Command& command, AdminFlags* flags);
// Only those that go with flags->url_option: --admin-key and --ca-file.
void AddAdminKeyOptions(Command& command, const char* group, AdminFlags* flags);

class AdminClient {
 public:
  static Result<AdminClient> Create(const AdminFlags& flags);

  // Returns the JSON object of the answer. An error answer becomes a Status with the server's own
  // message: kNotFound, kFailedPrecondition, kUnauthenticated, kInvalidArgument, kUnavailable.
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
