// AdminEndpoints: the endpoints through which operators reach a server. There is always a unix
// socket that belongs to the server's user; with --admin-listen there is also an address that needs
// a key.
//
// Owned by the command. One thread, not one of the server's own, starts and stops it. A thread of
// its own creates the socket again when its file was removed, for example at the end of the user's
// session. The service must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "net/http/http_server.h"
#include "serve/service.h"

namespace millrace::apps {

struct AdminEndpointOptions {
  uint16_t main_port = 0;                 // determines the socket's path
  std::string listen;                     // HOST:PORT; empty: the socket only
  std::string ssl_certfile, ssl_keyfile;  // of `listen`; both or neither
};

class AdminEndpoints {
 public:
  // Both endpoints listen when it returns.
  static Result<std::unique_ptr<AdminEndpoints>> Start(const AdminEndpointOptions& options,
                                                       serve::Service& service);
  // Stop().
  ~AdminEndpoints();

  // Returns a function that removes the socket's file, for a process that exits without Stop(). It
  // may be called by any thread at any time.
  std::function<void()> FileRemover() const;
  // As HttpServer::ReloadTls, if the address has TLS. Not while Stop runs.
  Status ReloadTls();
  // Calls that are still being answered are cut off.
  void Stop();

 private:
  // Shared with the functions of FileRemover, which may outlive the object.
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
  std::unique_ptr<net::HttpServer> socket_;   // Watch's while that runs; null: not open
  std::unique_ptr<net::HttpServer> address_;  // null without --admin-listen
  bool address_has_tls_ = false;

  Mutex mutex_;
  CondVar stops_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace millrace::apps
