// LogMute: while one lives, its thread logs nothing. For a simulation inside a server: what happens
// to its workers did not happen to ours. Any thread; they nest.
#pragma once

namespace millrace {

class LogMute {
 public:
  LogMute();
  ~LogMute();
  LogMute(const LogMute&) = delete;
  LogMute& operator=(const LogMute&) = delete;
};

}  // namespace millrace
