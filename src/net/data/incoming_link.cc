#include "net/data/incoming_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace millrace::net {

// Passed to the receiver of the message; dropping it returns the sender's credit.
struct ReceivedMessage {
  ReceivedMessage(std::shared_ptr<IncomingLink::CreditAccount> owner, MessageClass c, size_t size)
      : account(std::move(owner)), message_class(c), bytes(new std::byte[size]), size_bytes(size) {}
  ~ReceivedMessage() { account->Return(message_class, charged); }

  const std::shared_ptr<IncomingLink::CreditAccount> account;
  const MessageClass message_class;
  const std::unique_ptr<std::byte[]> bytes;  // not initialized
  const size_t size_bytes;
  size_t charged = 0;
};

namespace {

Status SenderError(const char* what) {
  return InvalidArgument(fmt::format("the sender sent {}", what));
}

}  // namespace

void IncomingLink::CreditAccount::Return(MessageClass message_class, size_t bytes) {
  const size_t c = Index(message_class);
  if (returned[c].fetch_add(bytes) + bytes < worth_telling[c]) return;
  MutexLock lock(mutex);
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
    MutexLock lock(account_->mutex);
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
    return FailedPrecondition("from or to an incarnation that is gone");
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
  welcome.shares_memory = direct_;
  welcome.cookie = host_.cookie;
  SendHello(EncodeWelcome(welcome, answer, challenge_, secret()));
  peer_ = answer.self;
  host_.OnKnown(std::static_pointer_cast<IncomingLink>(shared_from_this()));
  SetReady();
  return OkStatus();
}

void IncomingLink::OnClosed(const Status& reason) {
  {
    MutexLock lock(account_->mutex);
    account_->link = nullptr;
  }
  std::map<uint64_t, std::shared_ptr<ServedPull>> pulls;
  std::deque<std::shared_ptr<ServedPull>> turn;
  {
    MutexLock lock(queue_mutex_);
    pulls.swap(pulls_);
    turn.swap(turn_);
    control_.clear();
  }
  if (lease_timer_) host_.loop.Cancel(*lease_timer_);
  lease_timer_.reset();
  for (Assembly& a : assemblies_) a = {};
  host_.OnIncomingEnd(*this, reason);
}

// ---- frames

bool IncomingLink::NextFrame(OutFrame& out) {
  MutexLock lock(queue_mutex_);
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

Status IncomingLink::OnFrameStart(const FrameHeader& h) {
  Assembly& assembly = assemblies_[Index(h.message_class)];
  switch (h.type) {
    case FrameType::kMessage: return StartMessage(h, assembly);
    case FrameType::kMore: return ContinueMessage(h, assembly);
    case FrameType::kPull:
      if (h.payload_bytes < kPullHeadBytes ||
          h.payload_bytes > kPullHeadBytes + host_.options.limits.request_bytes) {
        return SenderError("a pull with the wrong length");
      }
      if (h.id <= last_pull_id_) return SenderError("the same pull twice");
      last_pull_id_ = h.id;
      request_.resize(h.payload_bytes);
      return OkStatus();
    case FrameType::kPullCancel:
    case FrameType::kPullRelease: return OkStatus();
    default: return SenderError("a frame that only an owner may send");
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
  MutexLock lock(queue_mutex_);
  if (bytes > host_.options.limits.window_bytes[c] - in_use_[c]) {
    return SenderError("more than its credit allows");
  }
  in_use_[c] += bytes;
  return OkStatus();
}

Status IncomingLink::StartMessage(const FrameHeader& h, Assembly& a) {
  const DataPlaneLimits& limits = host_.options.limits;
  if (a.active || h.id != a.next_id) return SenderError("a message out of order");
  if (h.small > limits.key_bytes || h.small > h.payload_bytes)
    return SenderError("a key that is too long");
  const size_t data_bytes = h.payload_bytes - h.small;
  if (h.value > MessageBytesMax(limits.window_bytes[Index(h.message_class)]) ||
      data_bytes > h.value) {
    return SenderError("a message that is too large");
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
  if (!a.active || h.id != a.next_id || h.value != a.done)
    return SenderError("a part out of order");
  if (h.payload_bytes == 0 || h.payload_bytes > a.total - a.done)
    return SenderError("a part that is too long");
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

}  // namespace millrace::net
