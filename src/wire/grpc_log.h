// WriteGrpcLine: writes gRPC's log lines to our log. Pass it to gpr_set_log_function before any
// other use of gRPC. Any thread.
#pragma once

#include <grpc/support/log.h>

#include <string>

#include "base/log.h"
#include "wire/handshake_failures.h"

namespace millrace::wire {

// gRPC writes a line for every failed handshake. At debug level, because otherwise any stranger
// could fill the disk with them; HandshakeFailures sums them up.
inline void WriteGrpcLine(gpr_log_func_args* line) {
  const std::string text = Printable(line->message, 1024);
  if (text.starts_with("assertion failed")) {  // gRPC aborts after this line
    MR_LOG(error, "gRPC: {}", text);
  } else {
    MR_LOG(debug, "gRPC: {}", text);
    HandshakeFailures::OfProcess().Take(text);
  }
}

}  // namespace millrace::wire
