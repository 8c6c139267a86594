#include "net/data/hello.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "net/data/little_endian.h"

namespace millrace::net {
namespace {

constexpr std::array<char, 4> kMagic = {'M', 'R', 'D', 'P'};
enum class HelloKind : uint16_t { kChallenge = 1, kAnswer = 2, kWelcome = 3 };

// magic, version, kind, total length.
constexpr size_t kVersionAt = 4, kKindAt = 6, kLengthAt = 8, kHeadBytes = 12;

class Writer {
 public:
  Writer(HelloKind kind, uint16_t version) {
    Raw(std::as_bytes(std::span(kMagic)));
    Number(version);
    Number(static_cast<uint16_t>(kind));
    Number(uint32_t{0});
  }
  template <typename T>
  void Number(T value) {
    bytes_.resize(bytes_.size() + sizeof(T));
    StoreLe(bytes_.data() + bytes_.size() - sizeof(T), value);
  }
  void Raw(std::span<const std::byte> raw) { bytes_.insert(bytes_.end(), raw.begin(), raw.end()); }
  void Text(std::string_view text) {
    MR_CHECK(text.size() <= kHelloNameBytesMax);
    Number(static_cast<uint8_t>(text.size()));
    Raw(std::as_bytes(std::span(text.data(), text.size())));
  }
  void Address(const PeerAddress& a) {
    Number(a.incarnation);
    Number(a.process_id);
    Text(a.endpoint);
    Text(a.host_id);
  }
  // `still_to_come`: bytes that the caller appends.
  HelloBytes Take(size_t still_to_come) {
    StoreLe(&bytes_[kLengthAt], static_cast<uint32_t>(bytes_.size() + still_to_come));
    return std::move(bytes_);
  }

 private:
  HelloBytes bytes_;
};

// After an attempt to read too much, everything reads as zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  T Number() {
    const auto raw = Raw(sizeof(T));
    return raw.empty() ? T{} : LoadLe<T>(raw.data());
  }
  std::span<const std::byte> Raw(size_t n) {
    if (n > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto raw = rest_.first(n);
    rest_ = rest_.subspan(n);
    return raw;
  }
  template <size_t n>
  void Fill(std::array<std::byte, n>& out) {
    const auto raw = Raw(n);
    if (!raw.empty()) std::memcpy(out.data(), raw.data(), n);
  }
  std::string Text() {
    const auto raw = Raw(Number<uint8_t>());
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  PeerAddress Address() {
    PeerAddress a;
    a.incarnation = Number<uint64_t>();
    a.process_id = Number<int64_t>();
    a.endpoint = Text();
    a.host_id = Text();
    return a;
  }
  bool Finished() const { return ok_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

using Proof = std::array<std::byte, kProofBytes>;

// Covers everything that both sides have said. The messages contain their kind, so the proof of one
// side is never valid as the proof of the other.
Proof MakeProof(HelloSecret secret, std::initializer_list<std::span<const std::byte>> said) {
  std::vector<std::byte> all;
  for (auto part : said) all.insert(all.end(), part.begin(), part.end());
  all.insert(all.end(), secret.binding.begin(), secret.binding.end());
  Proof proof;
  unsigned int size = 0;
  MR_CHECK(HMAC(EVP_sha256(), secret.token.data(), static_cast<int>(secret.token.size()),
                reinterpret_cast<const unsigned char*>(all.data()), all.size(),
                reinterpret_cast<unsigned char*>(proof.data()), &size) != nullptr);
  MR_CHECK(size == kProofBytes);
  return proof;
}

HelloBytes AnswerWithoutProof(const Answer& a) {
  Writer w(HelloKind::kAnswer, a.version);
  w.Raw(a.nonce);
  w.Number(a.expected_incarnation);
  w.Address(a.self);
  w.Number(a.user_id);
  return w.Take(kProofBytes);
}

HelloBytes WelcomeWithoutProof(const Welcome& m, uint16_t version) {
  Writer w(HelloKind::kWelcome, version);
  for (uint64_t bytes : m.window_bytes) w.Number(bytes);
  w.Number(m.pulls);
  w.Address(m.self);
  w.Number(m.user_id);
  w.Number(uint64_t{m.shares_memory});
  w.Raw(m.cookie);
  return w.Take(kProofBytes);
}

uint16_t VersionOf(std::span<const std::byte> message) {
  return LoadLe<uint16_t>(&message[kVersionAt]);
}

Status NoCommonVersion(uint16_t oldest, uint16_t newest) {
  return {StatusCode::kFailedPrecondition,
          fmt::format("the other side speaks versions {} to {} of the data protocol, this one {} "
                      "to {}; run releases that are at most one apart on every machine",
                      oldest, newest, kDataProtocolVersionOldest, kDataProtocolVersion)};
}

// The message's body and, separately, its proof.
Result<std::pair<Reader, std::span<const std::byte>>> Open(std::span<const std::byte> message,
                                                           HelloKind kind, size_t proof_bytes) {
  MR_CHECK(message.size() >= kHeadBytes);
  if (LoadLe<uint16_t>(&message[kKindAt]) != static_cast<uint16_t>(kind) ||
      message.size() < kHeadBytes + proof_bytes) {
    return InvalidArgument("a hello message out of order");
  }
  const size_t body_bytes = message.size() - kHeadBytes - proof_bytes;
  return std::pair(Reader(message.subspan(kHeadBytes, body_bytes)), message.last(proof_bytes));
}

Status CheckProof(std::span<const std::byte> shown, const Proof& wanted) {
  if (CRYPTO_memcmp(shown.data(), wanted.data(), kProofBytes) == 0) return OkStatus();
  return {StatusCode::kUnauthenticated, "the other side does not know this cluster's token"};
}

}  // namespace

Nonce RandomNonce() {
  Nonce nonce;
  MR_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonceBytes) == 1);
  return nonce;
}

uint64_t RandomIncarnation() {
  const Nonce nonce = RandomNonce();
  return LoadLe<uint64_t>(nonce.data()) | 1;
}

HelloBytes EncodeChallenge(const Challenge& challenge) {
  Writer w(HelloKind::kChallenge, challenge.newest);
  w.Raw(challenge.nonce);
  w.Number(challenge.incarnation);
  w.Number(challenge.oldest);
  return w.Take(0);
}

HelloBytes EncodeAnswer(const Answer& answer, const Challenge& challenge, HelloSecret secret) {
  HelloBytes bytes = AnswerWithoutProof(answer);
  const Proof proof = MakeProof(secret, {EncodeChallenge(challenge), bytes});
  bytes.insert(bytes.end(), proof.begin(), proof.end());
  return bytes;
}

HelloBytes EncodeWelcome(const Welcome& welcome, const Answer& answer, const Challenge& challenge,
                         HelloSecret secret) {
  HelloBytes bytes = WelcomeWithoutProof(welcome, answer.version);
  const Proof proof =
      MakeProof(secret, {EncodeChallenge(challenge), AnswerWithoutProof(answer), bytes});
  bytes.insert(bytes.end(), proof.begin(), proof.end());
  return bytes;
}

Result<std::optional<size_t>> HelloLength(std::span<const std::byte> bytes) {
  const size_t magic_bytes = std::min(bytes.size(), kMagic.size());
  if (std::memcmp(bytes.data(), kMagic.data(), magic_bytes) != 0) {
    return InvalidArgument("not a data plane hello");
  }
  if (bytes.size() < kHeadBytes) return std::optional<size_t>();
  // A newer challenge is read all the same, because it says which older versions would do.
  const uint16_t version = VersionOf(bytes);
  const bool challenge =
      LoadLe<uint16_t>(&bytes[kKindAt]) == static_cast<uint16_t>(HelloKind::kChallenge);
  if (version < kDataProtocolVersionOldest || (version > kDataProtocolVersion && !challenge)) {
    return NoCommonVersion(version, version);
  }
  const auto length = LoadLe<uint32_t>(&bytes[kLengthAt]);
  if (length < kHeadBytes || length > kHelloBytesMax) {
    return InvalidArgument(
        fmt::format("a hello of {} bytes, the limit is {}", length, kHelloBytesMax));
  }
  return bytes.size() < length ? std::optional<size_t>() : std::optional<size_t>(length);
}

Result<Challenge> DecodeChallenge(std::span<const std::byte> message) {
  MR_ASSIGN_OR_RETURN(auto opened, Open(message, HelloKind::kChallenge, 0));
  Challenge c;
  opened.first.Fill(c.nonce);
  c.incarnation = opened.first.Number<uint64_t>();
  c.oldest = opened.first.Number<uint16_t>();
  c.newest = VersionOf(message);
  if (!opened.first.Finished()) return InvalidArgument("the challenge has the wrong length");
  if (c.oldest > c.newest) return InvalidArgument("the challenge has no version");
  if (c.oldest > kDataProtocolVersion) return NoCommonVersion(c.oldest, c.newest);
  return c;
}

uint16_t NewestCommonVersion(const Challenge& challenge) {
  return std::min(challenge.newest, kDataProtocolVersion);
}

Result<Answer> DecodeAnswer(std::span<const std::byte> message, const Challenge& challenge,
                            HelloSecret secret) {
  MR_ASSIGN_OR_RETURN(auto opened, Open(message, HelloKind::kAnswer, kProofBytes));
  auto& [reader, proof] = opened;
  MR_RETURN_IF_ERROR(CheckProof(
      proof, MakeProof(secret,
                       {EncodeChallenge(challenge), message.first(message.size() - kProofBytes)})));
  Answer a;
  reader.Fill(a.nonce);
  a.expected_incarnation = reader.Number<uint64_t>();
  a.self = reader.Address();
  a.user_id = reader.Number<uint32_t>();
  a.version = VersionOf(message);
  if (!reader.Finished()) return InvalidArgument("the answer has the wrong length");
  if (a.self.incarnation == 0) return InvalidArgument("the answer has no incarnation");
  return a;
}

Result<Welcome> DecodeWelcome(std::span<const std::byte> message, const Answer& answer,
                              const Challenge& challenge, HelloSecret secret) {
  MR_ASSIGN_OR_RETURN(auto opened, Open(message, HelloKind::kWelcome, kProofBytes));
  auto& [reader, proof] = opened;
  MR_RETURN_IF_ERROR(
      CheckProof(proof, MakeProof(secret, {EncodeChallenge(challenge), AnswerWithoutProof(answer),
                                           message.first(message.size() - kProofBytes)})));
  Welcome w;
  for (uint64_t& bytes : w.window_bytes) bytes = reader.Number<uint64_t>();
  w.pulls = reader.Number<uint32_t>();
  w.self = reader.Address();
  w.user_id = reader.Number<uint32_t>();
  w.shares_memory = reader.Number<uint64_t>() != 0;
  reader.Fill(w.cookie);
  if (!reader.Finished()) return InvalidArgument("the welcome has the wrong length");
  if (VersionOf(message) != answer.version) {
    return InvalidArgument("the welcome has another version than the answer");
  }
  return w;
}

}  // namespace millrace::net
