// SamplingParams by reflection: a field of the struct is the field with the same name in
// control.proto.
#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "core/sampling_params.h"
#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

// In the order of ForEachField.
const std::vector<const FieldDescriptor*>& ProtoFields() {
  static const auto* const fields = [] {
    auto* found = new std::vector<const FieldDescriptor*>;
    const SamplingParams params;
    ForEachField(params, [found](const SamplingField& field, const auto&) {
      found->push_back(proto::SamplingParams::descriptor()->FindFieldByName(field.name));
      MR_CHECK(found->back() != nullptr);
    });
    return found;
  }();
  return *fields;
}

// Called for each field in order.
class SamplingWriter {
 public:
  explicit SamplingWriter(proto::SamplingParams& to) : to_(to) {}

  template <typename T>
  void operator()(const SamplingField&, const T& value) {
    Put(*ProtoFields()[next_++], value);
  }

 private:
  void Put(const FieldDescriptor& field, int value) {
    reflection_.SetUInt32(&to_, &field, static_cast<uint32_t>(value));
  }
  void Put(const FieldDescriptor& field, uint64_t value) {
    reflection_.SetUInt64(&to_, &field, value);
  }
  void Put(const FieldDescriptor& field, double value) {
    reflection_.SetDouble(&to_, &field, value);
  }
  void Put(const FieldDescriptor& field, const std::string& value) {
    if (!value.empty()) reflection_.SetString(&to_, &field, value);
  }
  void Put(const FieldDescriptor& field, bool value) { reflection_.SetBool(&to_, &field, value); }
  void Put(const FieldDescriptor& field, Pooling value) { Put(field, static_cast<int>(value)); }
  template <typename T>
  void Put(const FieldDescriptor& field, const std::optional<T>& value) {
    if (value) Put(field, *value);
  }
  void Put(const FieldDescriptor& field, const std::vector<std::pair<TokenId, float>>& biases) {
    for (const auto& [token, bias] : biases) {
      auto& entry = static_cast<proto::TokenBias&>(*reflection_.AddMessage(&to_, &field));
      entry.set_token(static_cast<uint32_t>(token));
      entry.set_bias(bias);
    }
  }
  void Put(const FieldDescriptor& field, const std::vector<TokenId>& tokens) {
    for (const TokenId token : tokens) {
      reflection_.AddUInt32(&to_, &field, static_cast<uint32_t>(token));
    }
  }
  void Put(const FieldDescriptor& field, const std::vector<std::vector<TokenId>>& runs) {
    for (const std::vector<TokenId>& run : runs) {
      auto& entry = static_cast<proto::Tokens&>(*reflection_.AddMessage(&to_, &field));
      entry.mutable_tokens()->Add(run.begin(), run.end());
    }
  }
  void Put(const FieldDescriptor& field, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) reflection_.AddString(&to_, &field, text);
  }

  proto::SamplingParams& to_;
  const Reflection& reflection_ = *proto::SamplingParams::GetReflection();
  size_t next_ = 0;
};

// Called for each field in order. After the first error it reads nothing more.
class SamplingReader {
 public:
  explicit SamplingReader(const proto::SamplingParams& from) : from_(from) {}

  template <typename T>
  void operator()(const SamplingField& field, T& value) {
    const FieldDescriptor& from = *ProtoFields()[next_++];
    if (status_.ok()) status_ = Get(field, from, value);
  }
  const Status& status() const { return status_; }

 private:
  Status Get(const SamplingField& field, const FieldDescriptor& from, int& value) {
    return Take(field.name, reflection_.GetUInt32(from_, &from), value);
  }
  Status Get(const SamplingField&, const FieldDescriptor& from, uint64_t& value) {
    value = reflection_.GetUInt64(from_, &from);
    return OkStatus();
  }
  Status Get(const SamplingField&, const FieldDescriptor& from, double& value) {
    value = reflection_.GetDouble(from_, &from);
    return OkStatus();
  }
  Status Get(const SamplingField&, const FieldDescriptor& from, bool& value) {
    value = reflection_.GetBool(from_, &from);
    return OkStatus();
  }
  Status Get(const SamplingField& field, const FieldDescriptor& from, std::string& value) {
    value = reflection_.GetString(from_, &from);  // Validate bounds it
    return CheckCount(field.name, value.size(), kGrammarBytesMax);
  }
  Status Get(const SamplingField& field, const FieldDescriptor& from, Pooling& value) {
    const uint32_t sent = reflection_.GetUInt32(from_, &from);
    value = static_cast<Pooling>(sent);
    if (sent <= static_cast<uint32_t>(Pooling::kMean)) return OkStatus();
    return InvalidArgument(fmt::format("{}: {} is not known", field.name, sent));
  }
  template <typename T>
  Status Get(const SamplingField& field, const FieldDescriptor& from, std::optional<T>& value) {
    return reflection_.HasField(from_, &from) ? Get(field, from, value.emplace()) : OkStatus();
  }
  Status Get(const SamplingField& field, const FieldDescriptor& from,
             std::vector<std::pair<TokenId, float>>& biases) {
    MR_RETURN_IF_ERROR(CheckItems(field, from));
    for (int i = 0; i < reflection_.FieldSize(from_, &from); ++i) {
      const auto& entry =
          static_cast<const proto::TokenBias&>(reflection_.GetRepeatedMessage(from_, &from, i));
      auto& [token, bias] = biases.emplace_back();
      MR_RETURN_IF_ERROR(Take(field.name, entry.token(), token));
      bias = entry.bias();
    }
    return OkStatus();
  }
  Status Get(const SamplingField& field, const FieldDescriptor& from,
             std::vector<TokenId>& tokens) {
    MR_RETURN_IF_ERROR(CheckItems(field, from));
    for (int i = 0; i < reflection_.FieldSize(from_, &from); ++i) {
      const uint32_t token = reflection_.GetRepeatedUInt32(from_, &from, i);
      MR_RETURN_IF_ERROR(Take(field.name, token, tokens.emplace_back()));
    }
    return OkStatus();
  }
  Status Get(const SamplingField& field, const FieldDescriptor& from,
             std::vector<std::vector<TokenId>>& runs) {
    MR_RETURN_IF_ERROR(CheckItems(field, from));
    for (int i = 0; i < reflection_.FieldSize(from_, &from); ++i) {
      const auto& entry =
          static_cast<const proto::Tokens&>(reflection_.GetRepeatedMessage(from_, &from, i));
      MR_RETURN_IF_ERROR(CheckCount(field.name, static_cast<size_t>(entry.tokens_size()),
                                    static_cast<size_t>(kBadWordTokensMax)));
      std::vector<TokenId>& run = runs.emplace_back();
      for (const uint32_t token : entry.tokens()) {
        MR_RETURN_IF_ERROR(Take(field.name, token, run.emplace_back()));
      }
    }
    return OkStatus();
  }
  Status Get(const SamplingField& field, const FieldDescriptor& from,
             std::vector<std::string>& texts) {
    MR_RETURN_IF_ERROR(CheckItems(field, from));
    for (int i = 0; i < reflection_.FieldSize(from_, &from); ++i) {
      texts.push_back(reflection_.GetRepeatedString(from_, &from, i));
    }
    return OkStatus();
  }
  Status CheckItems(const SamplingField& field, const FieldDescriptor& from) const {
    return CheckCount(field.name, static_cast<size_t>(reflection_.FieldSize(from_, &from)),
                      field.items_max);
  }

  const proto::SamplingParams& from_;
  const Reflection& reflection_ = *proto::SamplingParams::GetReflection();
  size_t next_ = 0;
  Status status_;
};

}  // namespace

void ToProto(const SamplingParams& from, proto::SamplingParams& to) {
  ForEachField(from, SamplingWriter(to));
}

Status FromProto(const proto::SamplingParams& from, SamplingParams& out) {
  SamplingReader reader(from);
  ForEachField(out, reader);
  MR_RETURN_IF_ERROR(reader.status());
  // The vocabulary is not known here; the sampling stage checks ids against it.
  return Validate(out, std::numeric_limits<int>::max());
}

}  // namespace millrace::wire
