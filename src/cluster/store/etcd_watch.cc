#include "cluster/store/etcd_watch.h"

namespace millrace::cluster {
namespace {

constexpr auto kPause = std::chrono::milliseconds(50);
constexpr Duration kConnectTimeout = Duration::Seconds(1);

}  // namespace

EtcdWatch::EtcdWatch(EtcdClient& client, std::string prefix, size_t hidden_bytes, List list,
                     Store::WatchCallback callback)
    : client_(client),
      prefix_(std::move(prefix)),
      hidden_bytes_(hidden_bytes),
      list_(std::move(list)),
      callback_(std::move(callback)),
      thread_([this] { Run(); }) {}

EtcdWatch::~EtcdWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (reading_ != nullptr) reading_->TryCancel();
  }
  stopped_.notify_all();
  thread_.join();
}

void EtcdWatch::Run() {
  while (!stopping_) {
    if (!next_revision_ && !DeliverSnapshot()) {
      Pause();
      continue;
    }
    ReadChanges();
    if (!stopping_) Pause();
  }
}

bool EtcdWatch::DeliverSnapshot() {
  Result<Listing> listing = list_();
  if (!listing.ok() || stopping_) return false;
  WatchUpdate update;
  if (lost_) update.status = DataLoss("etcd compacted changes that the watch had not read");
  lost_ = false;
  next_revision_ = listing->revision.value() + 1;
  update.snapshot = std::move(*listing);
  callback_(update);
  return true;
}

void EtcdWatch::ReadChanges() {
  EtcdClient::Member* member = client_.Connected(kConnectTimeout, &stopping_);
  if (member == nullptr) return;
  grpc::ClientContext context;
  // With this, a member that is cut off from the others ends the stream instead of stalling it.
  context.AddMetadata("hasleader", "true");
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    reading_ = &context;
  }
  std::unique_ptr<Stream> stream = member->watch->Watch(&context);
  etcdserverpb::WatchRequest request;
  etcdserverpb::WatchCreateRequest& create = *request.mutable_create_request();
  create.set_key(prefix_);
  create.set_range_end(PrefixEnd(prefix_));
  create.set_start_revision(*next_revision_);
  create.set_progress_notify(true);
  etcdserverpb::WatchResponse response;
  if (stream->Write(request)) {
    while (stream->Read(&response) && Deliver(response)) {
    }
  }
  context.TryCancel();
  while (stream->Read(&response)) {
  }
  (void)stream->Finish();
  {
    MutexLock lock(mutex_);
    reading_ = nullptr;
  }
  client_.AvoidMember(*member);
}

bool EtcdWatch::Deliver(const etcdserverpb::WatchResponse& response) {
  if (stopping_) return false;
  if (response.compact_revision() > 0) {
    lost_ = true;
    next_revision_.reset();
    return false;
  }
  if (response.canceled()) return false;
  if (response.created()) return true;
  WatchUpdate update;
  for (const mvccpb::Event& event : response.events()) {
    update.events.push_back(
        {event.type() == mvccpb::Event::DELETE ? WatchEvent::Kind::kDelete : WatchEvent::Kind::kPut,
         FromEtcd(event.kv(), hidden_bytes_)});
  }
  if (update.events.empty()) {  // a progress notification
    next_revision_ = std::max(*next_revision_, response.header().revision() + 1);
    return true;
  }
  next_revision_ = update.events.back().entry.modified.value() + 1;
  callback_(update);
  return true;
}

void EtcdWatch::Pause() {
  MutexLock lock(mutex_);
  stopped_.wait_for(lock, kPause, [this]() MR_REQUIRES(mutex_) { return stopping_.load(); });
}

KeyValue FromEtcd(const mvccpb::KeyValue& entry, size_t hidden_bytes) {
  KeyValue out{.key = entry.key().substr(std::min(hidden_bytes, entry.key().size())),
               .value = entry.value(),
               .created = Revision(entry.create_revision()),
               .modified = Revision(entry.mod_revision())};
  if (entry.lease() != 0) out.lease = LeaseId(entry.lease());
  return out;
}

}  // namespace millrace::cluster
