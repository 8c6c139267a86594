#include <fmt/format.h>

#include "core/cluster_spec.h"
#include "plan/io/helix_files.h"
#include "plan/io/text_fields.h"

namespace millrace::plan {
namespace {

constexpr double kTokensPerSecondMax = 1e15;

class CapacityReader {
 public:
  CapacityReader(std::string_view text, std::string_view name) : lines_(text), name_(name) {}

  Result<HelixCapacity> Read() {
    MR_ASSIGN_OR_RETURN(out_.cluster, Word("cluster"));
    MR_ASSIGN_OR_RETURN(out_.model, Word("model"));
    MR_ASSIGN_OR_RETURN(const int64_t layers, Count("layers", kHelixLayersMax));
    out_.num_layers = static_cast<int>(layers);
    MR_ASSIGN_OR_RETURN(const int64_t nodes, Count("nodes", ClusterSpec::kNodesMax));
    MR_ASSIGN_OR_RETURN(out_.activation_bytes, Count("activation_bytes", int64_t{1} << 40));
    MR_ASSIGN_OR_RETURN(out_.token_bytes, Count("token_bytes", int64_t{1} << 40));
    for (int64_t i = 0; i < nodes; ++i) MR_RETURN_IF_ERROR(Node(i));
    MR_ASSIGN_OR_RETURN(const auto title, Line("capacity", 1));
    for (int64_t i = 0; i <= nodes; ++i) MR_RETURN_IF_ERROR(Row(i));
    if (lines_.Next()) {
      return ErrorAt(name_, lines_.content(),
                     fmt::format("the file continues after the {} rows of the matrix", nodes + 1));
    }
    return std::move(out_);
  }

 private:
  // The fields of the next line, which must begin with `key` and have `size` fields.
  Result<std::vector<Field>> Line(std::string_view key, size_t size) {
    if (!lines_.Next()) {
      return ErrorAt(name_, lines_.line() + 1, 1,
                     fmt::format("the file ends where a line '{}' is expected", key));
    }
    auto fields = lines_.Fields();
    if (fields[0].text != key) {
      return ErrorAt(
          name_, fields[0],
          fmt::format("expected a line '{}' here, got '{}'", key, Printable(fields[0].text, 40)));
    }
    if (fields.size() != size) {
      return ErrorAt(name_, fields[0],
                     fmt::format("'{}' must be followed by {} values, got {}", key, size - 1,
                                 fields.size() - 1));
    }
    return fields;
  }

  Result<std::string> Word(std::string_view key) {
    MR_ASSIGN_OR_RETURN(const auto fields, Line(key, 2));
    return std::string(fields[1].text);
  }

  Result<int64_t> CountIn(const Field& field, std::string_view what, int64_t min, int64_t max) {
    const auto value = IntegerIn(field.text);
    if (value && *value >= min && *value <= max) return *value;
    return ErrorAt(name_, field,
                   fmt::format("{} must be an integer in [{}, {}], got '{}'", what, min, max,
                               Printable(field.text, 40)));
  }

  Result<int64_t> Count(std::string_view key, int64_t max) {
    MR_ASSIGN_OR_RETURN(const auto fields, Line(key, 2));
    return CountIn(fields[1], key, 1, max);
  }

  Result<double> Rate(const Field& field) {
    const auto value = NumberIn(field.text);
    if (value && *value >= 0 && *value <= kTokensPerSecondMax) return *value;
    return ErrorAt(name_, field,
                   fmt::format("tokens per second must be a number in [0, {:g}], got '{}'",
                               kTokensPerSecondMax, Printable(field.text, 40)));
  }

  Status Node(int64_t index) {
    if (!lines_.Next()) {
      return ErrorAt(name_, lines_.line() + 1, 1,
                     fmt::format("the file ends before node {}", index));
    }
    const auto fields = lines_.Fields();
    if (fields[0].text != "node" || fields.size() < 5) {
      return ErrorAt(
          name_, fields[0],
          fmt::format("expected a line 'node {} GPU REGION MAX_LAYERS T(1) ...' here", index));
    }
    MR_ASSIGN_OR_RETURN(const int64_t id, CountIn(fields[1], "the node's id", index, index));
    HelixNode node{std::string(fields[2].text), std::string(fields[3].text), {}};
    MR_ASSIGN_OR_RETURN(const int64_t max,
                        CountIn(fields[4], "the most layers", 0, out_.num_layers));
    if (fields.size() != 5 + static_cast<size_t>(max)) {
      return ErrorAt(name_, fields[4],
                     fmt::format("node {} must have a T(k) for each of {} layers, got {}", id, max,
                                 fields.size() - 5));
    }
    for (size_t i = 5; i < fields.size(); ++i) {
      MR_ASSIGN_OR_RETURN(const double rate, Rate(fields[i]));
      node.tokens_per_s.push_back(rate);
    }
    out_.nodes.push_back(std::move(node));
    return OkStatus();
  }

  Status Row(int64_t index) {
    const size_t size = out_.nodes.size() + 1;
    if (!lines_.Next()) {
      return ErrorAt(name_, lines_.line() + 1, 1,
                     fmt::format("the file ends before row {} of the matrix", index));
    }
    const auto fields = lines_.Fields();
    if (fields.size() != size) {
      return ErrorAt(name_, fields[0],
                     fmt::format("row {} of the matrix must hold {} numbers, got {}", index, size,
                                 fields.size()));
    }
    for (const Field& field : fields) {
      MR_ASSIGN_OR_RETURN(const double rate, Rate(field));
      out_.link_tokens_per_s.push_back(rate);
    }
    return OkStatus();
  }

  LineReader lines_;
  const std::string_view name_;
  HelixCapacity out_;
};

}  // namespace

Result<HelixCapacity> ParseHelixCapacity(std::string_view text, std::string_view name) {
  if (text.size() > kHelixBytesMax) {
    return InvalidArgument(
        fmt::format("{}: is larger than {} bytes", Printable(name), kHelixBytesMax));
  }
  return CapacityReader(text, name).Read();
}

}  // namespace millrace::plan
