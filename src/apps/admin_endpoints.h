// AdminEndpoints: where operators reach a server. Always a unix socket of its user, which is made
// again when its file is gone, as at the end of the user's session; with --admin-listen also an
// address that needs a key.
//
// It has a thread that looks after the file. One thread starts and stops it, none of the server's
// own. The service outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "net/http_server.h"
#include "serve/service.h"

namespace millrace::apps {

struct AdminEndpointOptions {
  uint16_t main_port = 0;                 // the socket's path follows from it
  std::string listen;                     // HOST:PORT; empty: the socket only
  std::string ssl_certfile, ssl_keyfile;  // of `listen`; both or neither
};

// kInvalidArgument unless it is HOST:PORT.
Status CheckAdminListen(const std::string& listen);

class AdminEndpoints {
 public:
  // They listen when it returns.
  static Result<std::unique_ptr<AdminEndpoints>> Start(const AdminEndpointOptions& options,
                                                       serve::Service& service);
  // Stop().
  ~AdminEndpoints();

  // Removes the socket's file, for a process that leaves without stopping anything. Any thread, at
  // any time.
  std::function<void()> FileRemover() const;
  // Cuts what is still being answered.
  void Stop();

 private:
  // Outlives the object in FileRemover.
  struct CurrentFile {
    Mutex mutex;
    net::UnixSocketFile file MR_GUARDED_BY(mutex);
  };

  AdminEndpoints(uint16_t main_port, serve::Service& service);
  Status OpenSocket();
  void Watch();

  const uint16_t main_port_;
  serve::Service& service_;
  const std::shared_ptr<CurrentFile> file_;
  std::unique_ptr<net::HttpServer> socket_;   // of Watch while that runs; null: cannot be made
  std::unique_ptr<net::HttpServer> address_;  // null without --admin-listen

  Mutex mutex_;
  CondVar stops_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace millrace::apps
