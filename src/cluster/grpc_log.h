// What gRPC says, in our log: for gpr_set_log_function, before anything else of gRPC. Any thread.
#pragma once

#include <grpc/support/log.h>

#include <string>

#include "base/log.h"

namespace millrace::cluster {

// gRPC writes a line for every failed handshake; strangers could fill a disk with them.
inline void WriteGrpcLine(gpr_log_func_args* line) {
  const std::string text = Printable(line->message, 1024);
  if (text.starts_with("assertion failed")) {  // its last words
    MR_LOG(error, "gRPC: {}", text);
  } else {
    MR_LOG(debug, "gRPC: {}", text);
  }
}

}  // namespace millrace::cluster
