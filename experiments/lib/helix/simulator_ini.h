// SimulatorIni: the .ini dialect of Helix's ".cluster.ini": sections of "key=value", where a value
// is a quantity ("1000.0 * mbps"), a quoted name or a bracketed list of names. Untrusted text: an
// error is one line, "NAME:LINE: what is wrong". Plain values; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::experiments::helix {

class SimulatorIni {
 public:
  static constexpr size_t kBytesMax = size_t{16} << 20;

  static Result<SimulatorIni> Parse(std::string_view text, std::string_view name);

  bool Has(const std::string& section) const { return sections_.contains(section); }
  // A number with its unit: kbps, mbps, gbps, KB, MB, GB (powers of 1000, in bytes), Sec, MilliSec.
  Result<double> Quantity(const std::string& section, const std::string& key) const;
  Result<std::string> Name(const std::string& section, const std::string& key) const;
  Result<std::vector<std::string>> Names(const std::string& section, const std::string& key) const;

 private:
  struct Value {
    std::string text;
    int line = 0;
  };
  Result<Value> Find(const std::string& section, const std::string& key) const;
  Status Error(int line, const std::string& what) const;

  std::string name_;
  std::map<std::string, std::map<std::string, Value>> sections_;
};

}  // namespace millrace::experiments::helix
