// RouteTable: the handler and the access rule (admin_access.h) of each method and path. A path that
// is not in the table is closed. Access is decided on the same entry whose handler is then called.
// Owned by the service; filled once, then read by any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/http/http.h"
#include "serve/http/admin_access.h"
#include "serve/http/api_error.h"
#include "serve/http/trace_context.h"

namespace millrace::serve {

// One HTTP request while the service handles it.
struct Call {
  net::HttpRequest request;
  std::shared_ptr<net::HttpReply> reply;
  std::string request_id;  // the client's x-request-id, or a generated one
  std::string rest;        // the part of the path after that of a kPrefix route
  // ApiKeys::Fingerprint, "" without keys. It separates the cached prefixes and streams of keys.
  std::string owner;
  // No client reads the answer as it comes: whoever made the call keeps it, event by event.
  bool in_background = false;
  bool clamps_max_tokens = false;     // beyond what the context leaves, as the caller's API has it
  std::optional<TraceContext> trace;  // if spans are exported
  // An error in the form of the caller's API; empty: ErrorResponse.
  std::function<net::HttpResponse(const ApiError&)> refusal;

  void Refuse(const ApiError& error) const {
    reply->Send(refusal ? refusal(error) : ErrorResponse(error));
  }
};

enum class PathKind { kExact, kPrefix };  // kPrefix: at least one byte follows the path

struct Route {
  std::string method;
  std::string path;
  Access access = Access::kKeyed;
  std::function<void(Call)> handler;
  PathKind kind = PathKind::kExact;
  bool takes_form = false;  // multipart/form-data, beside JSON
};

// `path` with one slash in place of several, and without one at the end. Clients join base URLs and
// paths as they like, and a redirect would lose the body of a POST.
std::string WithoutStraySlashes(std::string_view path);
// The rest of `path` below `root` ("/llm"); nullopt: it is not below.
std::optional<std::string_view> BelowRoot(std::string_view path, std::string_view root);

class RouteTable {
 public:
  struct Match {
    const Route* route = nullptr;    // nullptr: no such path, or not with this method
    const Route* on_path = nullptr;  // a route of this path, for any method
    std::string_view rest;
    std::string allow;  // "GET, HEAD": the methods of this path
  };

  void Add(Route route) { routes_.push_back(std::move(route)); }
  // The GET route answers HEAD. Paths are compared byte for byte, without normalizing case or dots.
  Match Find(std::string_view method, std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace millrace::serve
