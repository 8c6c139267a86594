#include "cluster/journal/journal_record.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <limits>

namespace millrace::cluster {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the journal copies numbers as little-endian");

enum class Kind : uint8_t {
  kAccept = 1,
  kTokens = 2,
  kFinished = 3,
  kSnapshotEnd = 4,
  kTokensWithLogprobs = 5,
  kAcceptJoining = 6,
};

// The minimum encoded size of a list's item. A count that needs more bytes than are left is
// refused.
template <typename T>
constexpr size_t kMinItemBytes = sizeof(T);
template <>
constexpr size_t kMinItemBytes<std::string> = sizeof(std::string) / 8;  // its encoding is shorter
template <>
constexpr size_t kMinItemBytes<PositionLogprobs> = sizeof(TokenLogprob) + sizeof(uint32_t);

class Writer {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(T value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void operator()(const std::string& text) {
    (*this)(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  template <typename T>
  void operator()(const std::vector<T>& list) {
    (*this)(static_cast<uint32_t>(list.size()));
    for (const T& item : list) (*this)(item);
  }
  template <typename T>
  void operator()(const std::optional<T>& value) {
    (*this)(static_cast<uint8_t>(value.has_value()));
    if (value) (*this)(*value);
  }
  void operator()(const std::pair<TokenId, float>& bias) {
    (*this)(bias.first);
    (*this)(bias.second);
  }
  void operator()(const TokenLogprob& one) {
    (*this)(one.token);
    (*this)(one.logprob);
    (*this)(one.rank);
  }
  void operator()(const PositionLogprobs& position) {
    (*this)(position.chosen);
    (*this)(position.top);
  }
  void operator()(const JournalLogprobs& logprobs) { (*this)(logprobs.positions); }
  void operator()(RequestId id) { (*this)(id.value()); }
  void operator()(bool value) { (*this)(static_cast<uint8_t>(value)); }

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what Writer writes. After the first mismatch it reads nothing more.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) {
    if (!Has(sizeof value)) return;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
  }
  void operator()(std::string& text) {
    const uint32_t size = Count(1);
    if (size > kJournalTextBytesMax) return Fail();
    text = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  template <typename T>
  void operator()(std::vector<T>& list) {
    list.resize(Count(kMinItemBytes<T>));
    for (T& item : list) (*this)(item);
  }
  template <typename T>
  void operator()(std::optional<T>& value) {
    bool present = false;
    (*this)(present);
    if (!present) return;
    T read{};
    (*this)(read);
    value = read;
  }
  void operator()(std::pair<TokenId, float>& bias) {
    (*this)(bias.first);
    (*this)(bias.second);
  }
  void operator()(TokenLogprob& one) {
    (*this)(one.token);
    (*this)(one.logprob);
    (*this)(one.rank);
  }
  void operator()(PositionLogprobs& position) {
    (*this)(position.chosen);
    (*this)(position.top);
  }
  void operator()(JournalLogprobs& logprobs) { (*this)(logprobs.positions); }
  void operator()(RequestId& id) {
    uint64_t value = 0;
    (*this)(value);
    id = RequestId(value);
  }
  void operator()(bool& value) {
    uint8_t byte = 0;
    (*this)(byte);
    if (byte > 1) return Fail();
    value = byte == 1;
  }

  // Whether all reads succeeded and nothing is left.
  bool whole() const { return !failed_ && rest_.empty(); }

 private:
  void Fail() {
    failed_ = true;
    rest_ = {};
  }
  bool Has(size_t bytes) {
    if (rest_.size() < bytes) Fail();
    return !failed_;
  }
  uint32_t Count(size_t bytes_each) {
    uint32_t count = 0;
    (*this)(count);
    return Has(count * bytes_each) ? count : 0;
  }

  std::string_view rest_;
  bool failed_ = false;
};

template <typename Archive, typename Record>
void VisitAccept(Archive& ar, Record& r) {
  ar(r.request), ar(r.external_id), ar(r.prompt), ar(r.priority), ar(r.cache_salt);
  ar(r.arrived_unix_ms), ar(r.front_end);
  ForEachField(r.params, [&ar](const SamplingField&, auto& value) { ar(value); });
}
template <typename Archive, typename Record>
void VisitTokens(Archive& ar, Record& r) {
  ar(r.request), ar(r.index), ar(r.position), ar(r.tokens), ar(r.cached_prompt_tokens);
  ar(r.finish_reason);
}
template <typename Archive, typename Record>
void VisitTokensWithLogprobs(Archive& ar, Record& r) {
  VisitTokens(ar, r);
  ar(r.logprobs), ar(r.prompt_logprobs);
}
template <typename Archive, typename Record>
void VisitFinished(Archive& ar, Record& r) {
  ar(r.request), ar(r.index), ar(r.reason);
}
template <typename Archive, typename Record>
void VisitSnapshotEnd(Archive& ar, Record& r) {
  ar(r.records), ar(r.next_request);
}

}  // namespace

// Compares encoded bytes, so that NaN equals itself.
bool operator==(const JournalAccept& a, const JournalAccept& b) {
  return EncodeJournalRecord(a) == EncodeJournalRecord(b);
}

bool operator==(const JournalLogprobs& a, const JournalLogprobs& b) {
  Writer left, right;
  left(a);
  right(b);
  return left.Take() == right.Take();
}

std::string EncodeJournalRecord(const JournalRecord& record) {
  Writer writer;
  const auto kind = [&writer](Kind k) { writer(static_cast<uint8_t>(k)); };
  if (const auto* accept = std::get_if<JournalAccept>(&record)) {
    kind(accept->joins ? Kind::kAcceptJoining : Kind::kAccept);
    VisitAccept(writer, *accept);
    if (accept->joins) writer(*accept->joins);
  } else if (const auto* tokens = std::get_if<JournalTokens>(&record)) {
    const bool plain =
        tokens->logprobs.positions.empty() && tokens->prompt_logprobs.positions.empty();
    kind(plain ? Kind::kTokens : Kind::kTokensWithLogprobs);
    plain ? VisitTokens(writer, *tokens) : VisitTokensWithLogprobs(writer, *tokens);
  } else if (const auto* end = std::get_if<JournalFinished>(&record)) {
    kind(Kind::kFinished);
    VisitFinished(writer, *end);
  } else {
    kind(Kind::kSnapshotEnd);
    VisitSnapshotEnd(writer, std::get<JournalSnapshotEnd>(record));
  }
  return writer.Take();
}

Result<JournalRecord> DecodeJournalRecord(std::string_view bytes) {
  Reader reader(bytes);
  uint8_t kind = 0;
  reader(kind);
  JournalRecord record;
  switch (static_cast<Kind>(kind)) {
    case Kind::kAccept: VisitAccept(reader, record.emplace<JournalAccept>()); break;
    case Kind::kTokens: VisitTokens(reader, record.emplace<JournalTokens>()); break;
    case Kind::kTokensWithLogprobs:
      VisitTokensWithLogprobs(reader, record.emplace<JournalTokens>());
      break;
    case Kind::kAcceptJoining: {
      auto& accept = record.emplace<JournalAccept>();
      VisitAccept(reader, accept);
      reader(accept.joins.emplace());
      break;
    }
    case Kind::kFinished: VisitFinished(reader, record.emplace<JournalFinished>()); break;
    case Kind::kSnapshotEnd: VisitSnapshotEnd(reader, record.emplace<JournalSnapshotEnd>()); break;
    default: return DataLoss("unknown kind of record");
  }
  if (!reader.whole()) return DataLoss("the record is too short or too long");
  return record;
}

}  // namespace millrace::cluster
