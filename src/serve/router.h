// RouteTable: which handler answers a method and a path, and who may call it (admin_access.h).
// Every route is listed and what is not listed is closed: access is decided on the very entry that
// is then called. Filled once, then read by any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/http.h"
#include "serve/admin_access.h"

namespace millrace::serve {

// One HTTP request on its way through the server.
struct Call {
  net::HttpRequest request;
  std::shared_ptr<net::HttpReply> reply;
  std::string request_id;  // the client's x-request-id, or ours
  std::string rest;        // what followed the path of a kPrefix route
  std::string
      owner;  // ApiKeys::Fingerprint, "" without keys: keeps cached prefixes and streams apart
};

enum class PathKind { kExact, kPrefix };  // kPrefix: the path and at least one byte more

struct Route {
  std::string method;
  std::string path;
  Access access = Access::kKeyed;
  std::function<void(Call)> handler;
  PathKind kind = PathKind::kExact;
};

class RouteTable {
 public:
  struct Match {
    const Route* route = nullptr;    // nullptr: no such path, or not with this method
    const Route* on_path = nullptr;  // any route of this path, whatever the method
    std::string_view rest;
    std::string allow;  // "GET, HEAD": the methods of this path
  };

  void Add(Route route) { routes_.push_back(std::move(route)); }
  // HEAD is answered by the route of GET. Paths are compared byte for byte: no folding of case,
  // slashes or dots.
  Match Find(std::string_view method, std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace millrace::serve
