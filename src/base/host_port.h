// HostPort: an address as users and peers write it, HOST:PORT. The one parser of hosts and ports:
// flags, the cluster's endpoints and what the program prints agree on their spelling. An IPv6
// address has brackets where a port follows ("[::1]:8000"), and may have them alone. Plain values;
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;

  std::string ToString() const;  // "10.0.0.2:7000", "[::1]:7000"
};

// A host alone: a name, an IPv4 address, or an IPv6 address with or without brackets and with or
// without a zone ("fe80::1%eth0"). "*" is 0.0.0.0. The message of kInvalidArgument
// continues the name of a flag: "must be ..., got 'x'".
Result<std::string> ParseHost(std::string_view text);

// A port from 0 to 65535 must follow the host.
Result<HostPort> ParseHostPort(std::string_view text);

// Whether `host` stands for every address of a machine, to listen on: nobody can call it.
bool IsEveryAddress(std::string_view host);

// `host` as it stands before a colon: an IPv6 address in brackets.
std::string BracketedHost(const std::string& host);

}  // namespace millrace
