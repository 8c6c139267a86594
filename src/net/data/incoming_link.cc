#include "net/data/incoming_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace millrace::net {

// Given to whoever takes the message; its end is the sender's credit.
struct ReceivedMessage {
  ReceivedMessage(std::shared_ptr<IncomingLink::CreditAccount> owner, MessageClass c, size_t size)
      : account(std::move(owner)), message_class(c), bytes(new std::byte[size]), size_bytes(size) {}
  ~ReceivedMessage() { account->Return(message_class, charged); }

  const std::shared_ptr<IncomingLink::CreditAccount> account;
  const MessageClass message_class;
  const std::unique_ptr<std::byte[]> bytes;  // not zeroed first
  const size_t size_bytes;
  size_t charged = 0;
};

namespace {

constexpr size_t kSumPieceBytes = 256 << 10;
constexpr size_t kEndTextBytesMax = 512;
constexpr size_t kControlSpare = 64;  // frames other than pulls' ends

Status Foul(const char* what) { return InvalidArgument(fmt::format("the sender sent {}", what)); }

size_t Index(MessageClass c) { return static_cast<size_t>(c); }

}  // namespace

void IncomingLink::CreditAccount::Return(MessageClass message_class, size_t bytes) {
  const size_t c = Index(message_class);
  if (returned[c].fetch_add(bytes) + bytes < worth_telling[c]) return;
  std::lock_guard lock(mutex);
  if (link != nullptr) link->FlushLater();
}

IncomingLink::IncomingLink(LinkHost& host, std::string where)
    : Link(host), where_(std::move(where)), account_(std::make_shared<CreditAccount>()) {
  for (size_t c = 0; c < kMessageClasses; ++c) {
    account_->worth_telling[c] = CreditReturnBytes(host.options.limits.window_bytes[c]);
  }
}

// ---- hello

void IncomingLink::Start(UniqueFd socket) {
  {
    std::lock_guard lock(account_->mutex);
    account_->link = this;
  }
  EndWithin(host_.options.limits.hello_within, "no hello in time");
  Adopt(std::move(socket), StreamSide::kAccepting, /*connecting=*/false);
}

void IncomingLink::OnConnected() {
  challenge_ = {.nonce = RandomNonce(), .incarnation = host_.self.incarnation};
  SendHello(EncodeChallenge(challenge_));
}

Status IncomingLink::OnHello(std::span<const std::byte> message) {
  MR_ASSIGN_OR_RETURN(const Answer answer, DecodeAnswer(message, challenge_, secret()));
  if (answer.expected_incarnation != host_.self.incarnation ||
      host_.Forgotten(answer.self.incarnation)) {
    host_.counters.Add(&DataPlaneStats::stale_refused);
    return FailedPrecondition("of or for an incarnation that is gone");
  }
  direct_ = host_.options.direct_reads && answer.self.host_id == host_.self.host_id &&
            answer.user_id == host_.user_id;
  Welcome welcome;
  for (size_t c = 0; c < kMessageClasses; ++c) {
    welcome.window_bytes[c] = host_.options.limits.window_bytes[c];
  }
  welcome.pulls = static_cast<uint32_t>(host_.options.limits.pulls_per_peer);
  welcome.self = host_.self;
  welcome.user_id = host_.user_id;
  welcome.cookie_address = direct_ ? reinterpret_cast<uint64_t>(host_.cookie.data()) : 0;
  welcome.cookie = host_.cookie;
  SendHello(EncodeWelcome(welcome, answer, challenge_, secret()));
  peer_ = answer.self;
  host_.OnKnown(std::static_pointer_cast<IncomingLink>(shared_from_this()));
  SetReady();
  return OkStatus();
}

void IncomingLink::OnClosed(const Status& reason) {
  {
    std::lock_guard lock(account_->mutex);
    account_->link = nullptr;
  }
  std::map<uint64_t, std::shared_ptr<ServedPull>> pulls;
  std::deque<std::shared_ptr<ServedPull>> turn;
  {
    std::lock_guard lock(queue_mutex_);
    pulls.swap(pulls_);
    turn.swap(turn_);
    control_.clear();
  }
  for (auto& [id, pull] : pulls) {
    if (pull->lease) host_.loop.Cancel(*pull->lease);
  }
  for (Assembly& a : assemblies_) a = {};
  host_.OnIncomingEnd(*this, reason);
}

// ---- frames

bool IncomingLink::NextFrame(OutFrame& out) {
  std::lock_guard lock(queue_mutex_);
  if (!control_.empty()) {
    Control& c = control_.front();
    out.header = c.header;
    out.parts.clear();
    if (!c.payload->empty()) out.parts.push_back(*c.payload);
    out.owners = {std::move(c.payload), nullptr};
    control_.pop_front();
    return true;
  }
  for (size_t c = 0; c < kMessageClasses; ++c) {
    if (account_->returned[c] < account_->worth_telling[c]) continue;
    const size_t bytes = account_->returned[c].exchange(0);
    in_use_[c] -= bytes;
    out.header = {
        .type = FrameType::kCredit, .message_class = static_cast<MessageClass>(c), .value = bytes};
    out.parts.clear();
    return true;
  }
  return NextOfPulls(out);
}

// One frame of each in turn.
bool IncomingLink::NextOfPulls(OutFrame& out) {
  for (size_t looked = turn_.size(); looked > 0; --looked) {
    std::shared_ptr<ServedPull> pull = std::move(turn_.front());
    turn_.pop_front();
    const bool found = pull->Next(out);
    if (pull->sent()) {
      host_.counters.Add(&DataPlaneStats::pulls_served);
      AddEnd(pull->id(), OkStatus(), pull->total());
      pulls_.erase(pull->id());
      out.owners[1] = std::move(pull);  // freed without the lock, as all that is the user's
    } else {
      if (const auto chunk = pull->NextToMake()) MakeChunk(pull, *chunk);
      turn_.push_back(std::move(pull));
    }
    if (found) {
      host_.counters.Add(&DataPlaneStats::pull_bytes_served, out.header.payload_bytes);
      return true;
    }
  }
  return false;
}

Status IncomingLink::OnFrameStart(const FrameHeader& h) {
  Assembly& assembly = assemblies_[Index(h.message_class)];
  switch (h.type) {
    case FrameType::kMessage: return StartMessage(h, assembly);
    case FrameType::kMore: return ContinueMessage(h, assembly);
    case FrameType::kPull:
      if (h.payload_bytes < kPullHeadBytes ||
          h.payload_bytes > kPullHeadBytes + host_.options.limits.request_bytes) {
        return Foul("a pull of the wrong length");
      }
      if (h.id <= last_pull_id_) return Foul("a pull for the second time");
      last_pull_id_ = h.id;
      request_.resize(h.payload_bytes);
      return OkStatus();
    case FrameType::kPullCancel:
    case FrameType::kPullRelease: return OkStatus();
    default: return Foul("a frame that only an owner sends");
  }
}

std::span<std::byte> IncomingLink::PlaceFor(const FrameHeader& h, size_t at) {
  if (h.type == FrameType::kPull) return std::span(request_).subspan(at);
  Assembly& a = assemblies_[Index(h.message_class)];
  const size_t key_bytes = h.type == FrameType::kMessage ? h.small : 0;
  if (at < key_bytes) return std::span(a.key).subspan(at);
  return {a.message->bytes.get() + a.done + (at - key_bytes), h.payload_bytes - at};
}

Status IncomingLink::OnFrameEnd(const FrameHeader& h) {
  switch (h.type) {
    case FrameType::kPull: return StartPull(h);
    case FrameType::kPullCancel: DropPull(h.id); return OkStatus();
    case FrameType::kPullRelease: DropPull(h.id); return OkStatus();
    default: break;
  }
  Assembly& a = assemblies_[Index(h.message_class)];
  a.done += h.payload_bytes - (h.type == FrameType::kMessage ? h.small : 0);
  if (a.done == a.total) Deliver(h.message_class, a);
  return OkStatus();
}

// ---- messages

Status IncomingLink::Charge(MessageClass message_class, size_t bytes) {
  const size_t c = Index(message_class);
  std::lock_guard lock(queue_mutex_);
  if (bytes > host_.options.limits.window_bytes[c] - in_use_[c]) {
    return Foul("more than its credit allows");
  }
  in_use_[c] += bytes;
  return OkStatus();
}

Status IncomingLink::StartMessage(const FrameHeader& h, Assembly& a) {
  const DataPlaneLimits& limits = host_.options.limits;
  if (a.active || h.id != a.next_id) return Foul("a message out of order");
  if (h.small > limits.key_bytes || h.small > h.payload_bytes) return Foul("too long a key");
  const size_t data_bytes = h.payload_bytes - h.small;
  if (h.value > MessageBytesMax(limits.window_bytes[Index(h.message_class)]) ||
      data_bytes > h.value) {
    return Foul("too large a message");
  }
  const size_t cost = kMessageCost + h.payload_bytes;
  MR_RETURN_IF_ERROR(Charge(h.message_class, cost));
  a.message = std::make_shared<ReceivedMessage>(account_, h.message_class, h.value);
  a.message->charged = cost;
  a.active = true;
  a.done = 0;
  a.total = h.value;
  a.key.resize(h.small);
  return OkStatus();
}

Status IncomingLink::ContinueMessage(const FrameHeader& h, Assembly& a) {
  if (!a.active || h.id != a.next_id || h.value != a.done) return Foul("a part out of order");
  if (h.payload_bytes == 0 || h.payload_bytes > a.total - a.done) return Foul("too long a part");
  MR_RETURN_IF_ERROR(Charge(h.message_class, h.payload_bytes));
  a.message->charged += h.payload_bytes;
  return OkStatus();
}

void IncomingLink::Deliver(MessageClass message_class, Assembly& a) {
  a.active = false;
  ++a.next_id;
  host_.counters.Add(&DataPlaneStats::messages_received);
  host_.counters.Add(&DataPlaneStats::message_bytes_received, a.total);
  std::shared_ptr<ReceivedMessage> message = std::move(a.message);
  const std::span<const std::byte> bytes(message->bytes.get(), message->size_bytes);
  if (!host_.events.on_message) return;
  host_.events.on_message(*peer_, message_class, a.key, Payload(std::move(message), bytes));
}

// ---- pulls

Status IncomingLink::StartPull(const FrameHeader& h) {
  MR_ASSIGN_OR_RETURN(const PullHead head, DecodePullHead(request_));
  if (head.direct && !direct_) return Foul("a wish to read memory that it cannot read");
  const auto pull = std::make_shared<ServedPull>(h.id, h.value, head.direct);
  const size_t pulls_max = host_.options.limits.pulls_per_peer;
  bool taken = false;
  {
    std::lock_guard lock(queue_mutex_);
    if (!host_.events.on_pull) {
      AddEnd(h.id, Unimplemented("this process serves no pulls"), 0);
    } else if (std::max(pulls_.size(), handling_) >= pulls_max) {
      AddEnd(h.id, ResourceExhausted("too many pulls at once"), 0);
    } else {
      pulls_.emplace(h.id, pull);
      ++handling_;
      taken = true;
    }
    // Refusals are answers too; who does not read them may not go on asking.
    if (control_.size() > 2 * pulls_max + kControlSpare) return Foul("pulls without end");
  }
  if (!taken) {
    Flush();
    return OkStatus();
  }
  std::vector<std::byte> request(request_.begin() + kPullHeadBytes, request_.end());
  host_.pool().Run([self = shared_from_this(), this, id = h.id, request = std::move(request)] {
    OnSource(id, host_.events.on_pull(*peer_, request));
  });
  return OkStatus();
}

void IncomingLink::OnSource(uint64_t id, Result<PullSource> source) {
  {
    std::lock_guard lock(queue_mutex_);
    --handling_;
  }
  if (!source.ok()) return EndPull(id, source.status());
  std::shared_ptr<const void> pin;
  if (const auto* segments = std::get_if<PullSegments>(&*source)) {
    auto pinned = host_.regions.PinFor(*segments);
    if (!pinned.ok()) {
      MR_LOG(error, "a pull failed: {}", pinned.status().message());
      return EndPull(id, pinned.status());
    }
    pin = std::move(*pinned);
  }
  std::shared_ptr<ServedPull> pull;
  {
    std::unique_lock lock(queue_mutex_);
    const auto it = pulls_.find(id);
    if (it == pulls_.end()) return;  // cancelled, or the reader is gone
    pull = it->second;
    if (const Status status = pull->Begin(std::move(*source), pin); !status.ok()) {
      lock.unlock();
      return EndPull(id, status);
    }
    if (pull->direct()) {
      AddControl({.type = FrameType::kPullDirect, .id = id, .value = pull->total()},
                 pull->DirectSegments());
    } else if (pull->sent()) {  // of no bytes
      host_.counters.Add(&DataPlaneStats::pulls_served);
      AddEnd(id, OkStatus(), 0);
      pulls_.erase(it);
    } else {
      turn_.push_back(pull);
      if (const auto chunk = pull->NextToMake()) MakeChunk(pull, *chunk);
    }
  }
  Flush();
  if (!pull->direct()) return;
  host_.loop.Post([self = shared_from_this(), this, pull] { ServeDirect(pull); });
}

void IncomingLink::MakeChunk(std::shared_ptr<ServedPull> pull, ServedPull::Chunk chunk) {
  host_.pool().Run([self = shared_from_this(), this, pull = std::move(pull), chunk] {
    const std::shared_ptr<std::byte[]> bytes(new std::byte[chunk.bytes]);
    const std::span<std::byte> out(bytes.get(), chunk.bytes);
    const Status status = pull->producer().produce(chunk.offset, out);
    if (!status.ok()) return EndPull(pull->id(), status);
    {
      std::lock_guard lock(queue_mutex_);
      pull->Made(Payload(bytes, out));
      if (!pulls_.contains(pull->id())) return;
      if (const auto next = pull->NextToMake()) MakeChunk(pull, *next);
    }
    Flush();
  });
}

void IncomingLink::ServeDirect(const std::shared_ptr<ServedPull>& pull) {
  {
    std::lock_guard lock(queue_mutex_);
    if (!pulls_.contains(pull->id())) return;
  }
  const Time end = host_.loop.Now() + host_.options.limits.direct_lease;
  pull->lease = host_.loop.At(end, [this, pull] {
    pull->lease.reset();
    EndPull(pull->id(), {StatusCode::kDeadlineExceeded, "the segments were not read in time"});
  });
  SumDirect(pull);
}

// A piece at a time; the reader copies meanwhile.
void IncomingLink::SumDirect(const std::shared_ptr<ServedPull>& pull) {
  if (closed()) return;
  if (!pull->AddToSum(kSumPieceBytes)) {
    host_.loop.Post([self = shared_from_this(), this, pull] { SumDirect(pull); });
    return;
  }
  {
    std::lock_guard lock(queue_mutex_);
    if (!pulls_.contains(pull->id())) return;
    host_.counters.Add(&DataPlaneStats::pulls_served);
    host_.counters.Add(&DataPlaneStats::pull_bytes_served, pull->total());
    AddControl({.type = FrameType::kPullSum, .id = pull->id(), .value = pull->sum()}, {});
  }
  Flush();
}

void IncomingLink::AddControl(const FrameHeader& header, std::vector<std::byte> payload) {
  Control c{header, std::make_shared<const std::vector<std::byte>>(std::move(payload))};
  c.header.payload_bytes = static_cast<uint32_t>(c.payload->size());
  control_.push_back(std::move(c));
}

void IncomingLink::AddEnd(uint64_t id, const Status& status, uint64_t bytes) {
  const std::string text = status.message().substr(0, kEndTextBytesMax);
  const auto raw = std::as_bytes(std::span(text.data(), text.size()));
  AddControl({.type = FrameType::kPullEnd,
              .small = static_cast<uint16_t>(status.code()),
              .id = id,
              .value = bytes},
             {raw.begin(), raw.end()});
}

void IncomingLink::EndPull(uint64_t id, const Status& status) {
  {
    std::lock_guard lock(queue_mutex_);
    if (!pulls_.contains(id)) return;
    AddEnd(id, status, 0);
  }
  DropPull(id);
  Flush();
}

void IncomingLink::DropPull(uint64_t id) {
  std::shared_ptr<ServedPull> pull;  // freed without the lock
  {
    std::lock_guard lock(queue_mutex_);
    const auto it = pulls_.find(id);
    if (it == pulls_.end()) return;
    pull = std::move(it->second);
    pulls_.erase(it);
    std::erase(turn_, pull);
  }
  host_.loop.Post([self = shared_from_this(), this, pull] {
    if (pull->lease) host_.loop.Cancel(*pull->lease);
    pull->lease.reset();
  });
}

}  // namespace millrace::net
