#include "cluster/store/leader_election.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/log.h"

namespace millrace::cluster {
namespace {

constexpr Duration kRetryMax = Duration::Millis(500);

std::chrono::nanoseconds Chrono(Duration d) {
  return std::chrono::nanoseconds(std::max<int64_t>(d.ns, 0));
}

Duration Fraction(Duration d, int64_t parts) { return {d.ns / parts}; }

}  // namespace

LeaderElection::LeaderElection(Store& store, const Clock& clock, ElectionOptions options,
                               OnChange on_change)
    : store_(store), clock_(clock), options_(std::move(options)), on_change_(std::move(on_change)) {
  watch_ = store_.WatchPrefix(options_.key, [this](const WatchUpdate& u) { Observe(u); });
  thread_ = std::thread([this] { Run(); });
}

LeaderElection::~LeaderElection() {
  Resign();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  watch_.reset();
}

void LeaderElection::Campaign() {
  MutexLock lock(mutex_);
  campaigning_ = true;
  changed_.notify_all();
}

void LeaderElection::Resign() {
  MutexLock lock(mutex_);
  campaigning_ = false;
  changed_.notify_all();
  if (std::this_thread::get_id() == thread_.get_id()) return;  // from the callback
  changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return !busy_ || campaigning_; });
}

void LeaderElection::GiveWay(const Status& why) {
  MutexLock lock(mutex_);
  gives_way_ = why;
  changed_.notify_all();
}

std::optional<Leadership> LeaderElection::leadership() const {
  MutexLock lock(mutex_);
  if (!held_ || !campaigning_ || key_gone_ || clock_.Now() >= held_->ends) return std::nullopt;
  return held_->leadership;
}

std::optional<Leader> LeaderElection::leader() const {
  MutexLock lock(mutex_);
  return leader_;
}

Status LeaderElection::last_try() const {
  MutexLock lock(mutex_);
  return last_try_;
}

void LeaderElection::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (!campaigning_) {
      changed_.wait(lock);
      continue;
    }
    busy_ = true;
    lock.unlock();
    const Status tried = TryToLead(std::nullopt);
    lock.lock();
    last_try_ = tried;
    if (!tried.ok()) {
      busy_ = false;
      changed_.notify_all();
      lock.unlock();
      WaitToTryAgain(tried);
      lock.lock();
      continue;
    }
    lock.unlock();
    const Status why = Lead();
    lock.lock();
    const Held held = *held_;
    lock.unlock();
    StepDown(held, why);
    lock.lock();
  }
}

Status LeaderElection::Lead() {
  while (true) {
    Held held;
    {
      MutexLock lock(mutex_);
      held = *held_;
    }
    on_change_(held.leadership, OkStatus());
    const Status why = HoldLease(held);
    {
      MutexLock lock(mutex_);
      if (!campaigning_ || !gives_way_.ok()) return why;
    }
    MR_LOG(warn, "the lease of the leadership has ended ({}); trying to take it again",
           Printable(why.message()));
    MR_RETURN_IF_ERROR(Regain(held));
  }
}

// The key may still be there under the old lease, which ended by our clock only.
Status LeaderElection::Regain(const Held& held) {
  const Term term = held.leadership.term;
  const Time since = clock_.Now();
  {
    MutexLock lock(mutex_);
    held_->ends = std::min(held_->ends, since);
  }
  (void)store_.Revoke(held.lease, kRetryMax).ok();
  while (true) {
    const Status tried = TryToLead(term);
    if (tried.ok()) return tried;
    if (const auto now = leader(); now && now->candidate != options_.candidate) {
      return FailedPrecondition(fmt::format("{} leads now", Printable(now->candidate)));
    }
    const Status led = CheckTerm(term);
    if (led.code() == StatusCode::kFailedPrecondition) return led;
    if (clock_.Now() - since > options_.regain_limit) {
      return Unavailable(fmt::format("the lease could not be taken again for {:.0f} s: {}",
                                     options_.regain_limit.seconds(), tried.message()));
    }
    MutexLock lock(mutex_);
    changed_.wait_for(lock, Chrono(std::min(kRetryMax, Fraction(options_.lease_ttl, 5))),
                      [this]() MR_REQUIRES(mutex_) { return !campaigning_ || !gives_way_.ok(); });
    if (!campaigning_) return Cancelled("this candidate resigned");
    if (!gives_way_.ok()) return gives_way_;
  }
}

Status LeaderElection::WriteTerm(const Leadership& leadership) {
  return store_
      .Put(TermKey(), std::to_string(leadership.term.value()),
           {.fence = leadership.fence, .timeout = options_.lease_ttl})
      .status();
}

Status LeaderElection::CheckTerm(Term term) {
  MR_ASSIGN_OR_RETURN(const auto last, store_.Get(TermKey(), options_.lease_ttl));
  if (last && last->value == std::to_string(term.value())) return OkStatus();
  return FailedPrecondition(
      last ? fmt::format("another controller has led since, with term {}", Printable(last->value))
           : "the store has lost what this controller wrote");
}

Status LeaderElection::TryToLead(std::optional<Term> term) {
  Result<std::optional<KeyValue>> now = store_.Get(options_.key, options_.lease_ttl);
  if (!now.ok()) return now.status();
  if (const std::optional<KeyValue>& entry = *now) {
    MutexLock lock(mutex_);
    Saw(&*entry, entry->modified);
    return FailedPrecondition("there is already a leader");
  }
  const Time asked = clock_.Now();
  MR_ASSIGN_OR_RETURN(const Lease lease, store_.Grant(options_.lease_ttl, options_.lease_ttl));
  Status claimed = Claim(lease.id, lease.ttl, asked, term);
  if (!claimed.ok()) (void)store_.Revoke(lease.id, kRetryMax).ok();  // or else it expires
  return claimed;
}

Status LeaderElection::Claim(LeaseId lease, Duration ttl, Time asked, std::optional<Term> term) {
  WriteOptions options{.lease = lease, .timeout = options_.lease_ttl};
  Result<Revision> created =
      store_.CompareAndPut(options_.key, std::nullopt, options_.candidate, options);
  if (!created.ok()) {
    if (created.status().code() == StatusCode::kFailedPrecondition) return created.status();
    // The write may have succeeded all the same: the lease of the key tells whose key it is.
    Result<std::optional<KeyValue>> now = store_.Get(options_.key, options_.lease_ttl);
    if (!now.ok() || !*now || (*now)->lease != lease) return created.status();
    created = (*now)->created;
  }
  const Leadership won{.term = term.value_or(Term(static_cast<uint64_t>(created->value()))),
                       .fence = {options_.key, *created}};
  MR_RETURN_IF_ERROR(term ? CheckTerm(*term) : WriteTerm(won));
  MutexLock lock(mutex_);
  if (clock_.Now() >= asked + ttl) {
    return Unavailable("the lease expired before the store granted it");
  }
  held_ = Held{.leadership = won, .lease = lease, .ttl = ttl, .ends = asked + ttl};
  key_gone_ = false;
  KeyValue mine{.value = options_.candidate, .created = *created};
  Saw(&mine, *created);
  return OkStatus();
}

Status LeaderElection::HoldLease(const Held& held) {
  Duration wait = Fraction(held.ttl, 3);
  while (true) {
    {
      MutexLock lock(mutex_);
      const Duration left = held_->ends - clock_.Now();
      changed_.wait_for(lock, Chrono(std::min(wait, left)), [this]() MR_REQUIRES(mutex_) {
        return !campaigning_ || key_gone_ || !gives_way_.ok();
      });
      if (!campaigning_) return Cancelled("this candidate resigned");
      if (!gives_way_.ok()) return gives_way_;
      if (key_gone_) return FailedPrecondition("the leader's key was deleted or replaced");
    }
    const Status renewed = Renew(held);
    if (renewed.ok()) {
      wait = Fraction(held.ttl, 3);
    } else if (renewed.code() == StatusCode::kNotFound ||
               renewed.code() == StatusCode::kDeadlineExceeded) {
      return renewed;
    } else {
      wait = Fraction(held.ttl, 20);
    }
  }
}

// kDeadlineExceeded: the lease has ended by our clock, even if the store still keeps it.
Status LeaderElection::Renew(const Held& held) {
  const Time asked = clock_.Now();
  Time ends;
  {
    MutexLock lock(mutex_);
    ends = held_->ends;
  }
  const Status late(StatusCode::kDeadlineExceeded, "the lease expired before it was renewed");
  if (asked >= ends) return late;
  const Result<Duration> ttl =
      store_.KeepAlive(held.lease, std::min(ends - asked, Fraction(held.ttl, 3)));
  MutexLock lock(mutex_);
  // A lease that has ended stays ended: leadership() may have returned nullopt already.
  if (clock_.Now() >= ends) return late;
  if (ttl.ok()) {
    held_->ends = std::max(held_->ends, asked + *ttl);
    return OkStatus();
  }
  if (ttl.status().code() == StatusCode::kNotFound) return ttl.status();
  return Unavailable(ttl.status().message());
}

// This candidate stops leading before it lets another one become leader.
void LeaderElection::StepDown(const Held& held, const Status& why) {
  {
    MutexLock lock(mutex_);
    held_.reset();
    gives_way_ = OkStatus();
  }
  on_change_(std::nullopt, why);
  if (why.code() != StatusCode::kNotFound) (void)store_.Revoke(held.lease, kRetryMax).ok();
  MutexLock lock(mutex_);
  busy_ = false;
  changed_.notify_all();
}

void LeaderElection::WaitToTryAgain(const Status& why) {
  MutexLock lock(mutex_);
  const bool led = why.code() == StatusCode::kFailedPrecondition;
  const Duration wait =
      led ? options_.lease_ttl : std::min(kRetryMax, Fraction(options_.lease_ttl, 5));
  changed_.wait_for(lock, Chrono(wait), [this, led]() MR_REQUIRES(mutex_) {
    return stopping_ || !campaigning_ || (led && !leader_.has_value());
  });
}

void LeaderElection::Observe(const WatchUpdate& update) {
  MutexLock lock(mutex_);
  if (update.snapshot) {
    const auto& entries = update.snapshot->entries;
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [this](const KeyValue& e) { return e.key == options_.key; });
    Saw(found == entries.end() ? nullptr : &*found, update.snapshot->revision);
  }
  for (const WatchEvent& event : update.events) {
    if (event.entry.key != options_.key) continue;
    Saw(event.kind == WatchEvent::Kind::kPut ? &event.entry : nullptr, event.entry.modified);
  }
}

void LeaderElection::Saw(const KeyValue* entry, Revision at) {
  if (at < leader_seen_at_) return;  // older than the last observation
  leader_seen_at_ = at;
  leader_.reset();
  if (entry) {
    leader_ = Leader{entry->value, Term(static_cast<uint64_t>(entry->created.value()))};
  }
  if (held_ && (!entry || entry->created != held_->leadership.fence.created)) key_gone_ = true;
  changed_.notify_all();
}

}  // namespace millrace::cluster
