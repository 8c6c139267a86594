// SessionGroup: one I/O thread and its connections. Owned by HttpServer. Hides Asio, which is slow
// to compile.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/file.h"
#include "net/http/body_memory.h"
#include "net/http/http_server.h"
#include "net/tls.h"

namespace millrace::net {

struct SessionHub;  // session_asio.h

class SessionGroup {
 public:
  // `tls` may be null; `bodies` is of all groups of a server, and outlives them. Starts the thread.
  SessionGroup(const HttpServerOptions& options, HttpHandler handler, TlsContext tls,
               BodyMemory& bodies);
  // REQUIRES: no connection is left.
  ~SessionGroup();

  // Any thread may call these.
  void Add(UniqueFd socket, std::string peer);
  void Refuse(UniqueFd socket);  // with a 503
  void UseTls(TlsContext tls);   // for connections added after it; REQUIRES: had one before
  size_t size() const;           // connections, refused ones included
  void Drain();                  // no further requests; idle connections close
  void CutAll();
  // False when connections are left after `limit`.
  bool WaitUntilEmpty(Duration limit);

 private:
  std::unique_ptr<SessionHub> hub_;
};

}  // namespace millrace::net
