#include "cluster/store/etcd_store.h"

#include <fmt/format.h>

#include "cluster/store/etcd_client.h"
#include "cluster/store/etcd_watch.h"

namespace millrace::cluster {
namespace {

// A page of the largest values fits into one message (etcd_client.cc).
constexpr int64_t kListPageKeys = 100;
constexpr int kListTries = 3;

class EtcdStore : public Store {
 public:
  EtcdStore(std::unique_ptr<EtcdClient> client, std::string prefix)
      : client_(std::move(client)), prefix_(std::move(prefix)) {}

  Result<std::optional<KeyValue>> Get(std::string_view key, Duration timeout) override {
    MR_RETURN_IF_ERROR(CheckStoreKey(key));
    etcdserverpb::RangeRequest request;
    request.set_key(Full(key));
    etcdserverpb::RangeResponse response;
    MR_RETURN_IF_ERROR(Range(request, timeout, response));
    std::optional<KeyValue> entry;
    if (response.kvs_size() > 0) entry = FromEtcd(response.kvs(0), prefix_.size());
    return entry;
  }

  Result<Listing> List(std::string_view prefix, Duration timeout) override {
    const SteadyClock clock;
    const Time deadline = clock.Now() + timeout;
    for (int tries = 1;; ++tries) {
      Result<Listing> listing = ListOnce(Full(prefix), deadline);
      // Its revision may have been compacted between two pages.
      const bool again =
          !listing.ok() && listing.status().code() == StatusCode::kDataLoss && tries < kListTries;
      if (!again) return listing;
    }
  }

  Result<Revision> Put(std::string_view key, std::string_view value,
                       const WriteOptions& options) override {
    return PutIf(key, value, {}, options);
  }

  Result<Revision> CompareAndPut(std::string_view key, std::optional<Revision> expected,
                                 std::string_view value, const WriteOptions& options) override {
    etcdserverpb::TxnRequest txn;
    etcdserverpb::Compare& compare = *txn.add_compare();
    compare.set_key(Full(key));
    compare.set_result(etcdserverpb::Compare::EQUAL);
    compare.set_target(etcdserverpb::Compare::MOD);  // 0 if the key does not exist
    compare.set_mod_revision(expected ? expected->value() : 0);
    return PutIf(key, value, std::move(txn), options);
  }

  Result<Revision> Delete(std::string_view key, const WriteOptions& options) override {
    MR_RETURN_IF_ERROR(CheckStoreKey(key));
    etcdserverpb::TxnRequest txn;
    txn.add_success()->mutable_request_delete_range()->set_key(Full(key));
    return Commit(std::move(txn), options);
  }

  Result<Lease> Grant(Duration ttl, Duration timeout) override {
    MR_RETURN_IF_ERROR(CheckLeaseTtl(ttl));
    etcdserverpb::LeaseGrantRequest request;
    request.set_ttl((ttl.ns + 999'999'999) / 1'000'000'000);
    etcdserverpb::LeaseGrantResponse response;
    // Repeating may leave an unused lease behind; it expires.
    MR_RETURN_IF_ERROR(client_->Call(timeout, EtcdClient::Repeat::kYes, [&](auto& member, auto& c) {
      return member.lease->LeaseGrant(&c, request, &response);
    }));
    if (!response.error().empty()) return Unavailable("etcd: " + response.error());
    return Lease{LeaseId(response.id()), Seconds(response.ttl())};
  }

  Result<Duration> KeepAlive(LeaseId lease, Duration timeout) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(lease.value());
    etcdserverpb::LeaseKeepAliveResponse response;
    MR_RETURN_IF_ERROR(client_->Call(timeout, EtcdClient::Repeat::kYes, [&](auto& member, auto& c) {
      auto stream = member.lease->LeaseKeepAlive(&c);
      const bool answered = stream->Write(request) && stream->Read(&response);
      if (answered) c.TryCancel();
      const grpc::Status end = stream->Finish();
      if (answered) return grpc::Status::OK;
      return end.ok() ? grpc::Status(grpc::UNAVAILABLE, "no answer to the keep-alive") : end;
    }));
    if (response.ttl() <= 0) return NotFound(fmt::format("lease {} has ended", lease.value()));
    return Seconds(response.ttl());
  }

  Status Revoke(LeaseId lease, Duration timeout) override {
    etcdserverpb::LeaseRevokeRequest request;
    request.set_id(lease.value());
    etcdserverpb::LeaseRevokeResponse response;
    return client_->Call(timeout, EtcdClient::Repeat::kYes, [&](auto& member, auto& context) {
      return member.lease->LeaseRevoke(&context, request, &response);
    });
  }

  std::unique_ptr<Watch> WatchPrefix(std::string_view prefix, WatchCallback callback) override {
    return std::make_unique<EtcdWatch>(
        *client_, Full(prefix), prefix_.size(),
        [this, prefix = std::string(prefix)] { return List(prefix, kStoreTimeout); },
        std::move(callback));
  }

 private:
  static Duration Seconds(int64_t s) { return Duration::Millis(s * 1000); }
  std::string Full(std::string_view key) const { return prefix_ + std::string(key); }

  Status Range(const etcdserverpb::RangeRequest& request, Duration timeout,
               etcdserverpb::RangeResponse& response) {
    return client_->Call(timeout, EtcdClient::Repeat::kYes, [&](auto& member, auto& context) {
      return member.kv->Range(&context, request, &response);
    });
  }

  // Reads all pages at one revision.
  Result<Listing> ListOnce(const std::string& prefix, Time deadline) {
    const SteadyClock clock;
    Listing listing;
    etcdserverpb::RangeRequest request;
    request.set_key(prefix);
    request.set_range_end(PrefixEnd(prefix));
    request.set_limit(kListPageKeys);
    while (true) {
      etcdserverpb::RangeResponse response;
      MR_RETURN_IF_ERROR(Range(request, deadline - clock.Now(), response));
      if (request.revision() == 0) {
        request.set_revision(response.header().revision());
        listing.revision = Revision(response.header().revision());
      }
      for (const mvccpb::KeyValue& entry : response.kvs()) {
        listing.entries.push_back(FromEtcd(entry, prefix_.size()));
      }
      if (listing.entries.size() > kStoreListKeysMax) {
        return Status(StatusCode::kTooLarge,
                      fmt::format("more than {} keys begin with {}", kStoreListKeysMax, prefix));
      }
      if (!response.more() || response.kvs_size() == 0) return listing;
      request.set_key(response.kvs(response.kvs_size() - 1).key() + std::string(1, '\0'));
    }
  }

  Result<Revision> PutIf(std::string_view key, std::string_view value, etcdserverpb::TxnRequest txn,
                         const WriteOptions& options) {
    MR_RETURN_IF_ERROR(CheckStoreKey(key));
    MR_RETURN_IF_ERROR(CheckStoreValue(value));
    etcdserverpb::PutRequest& put = *txn.add_success()->mutable_request_put();
    put.set_key(Full(key));
    put.set_value(std::string(value));
    if (options.lease) put.set_lease(options.lease->value());
    return Commit(std::move(txn), options);
  }

  Result<Revision> Commit(etcdserverpb::TxnRequest txn, const WriteOptions& options) {
    if (options.fence) {
      etcdserverpb::Compare& compare = *txn.add_compare();
      compare.set_key(Full(options.fence->key));
      compare.set_result(etcdserverpb::Compare::EQUAL);
      compare.set_target(etcdserverpb::Compare::CREATE);
      compare.set_create_revision(options.fence->created.value());
    }
    etcdserverpb::TxnResponse response;
    const Status status = client_->Call(
        options.timeout, EtcdClient::Repeat::kNo,
        [&](auto& member, auto& context) { return member.kv->Txn(&context, txn, &response); });
    MR_RETURN_IF_ERROR(status);
    if (!response.succeeded()) {
      return FailedPrecondition(
          options.fence ? "the fence does not hold, or the key is not at the expected revision"
                        : "the key is not at the expected revision");
    }
    return Revision(response.header().revision());
  }

  const std::unique_ptr<EtcdClient> client_;
  const std::string prefix_;  // begins every key
};

}  // namespace

Result<std::unique_ptr<Store>> OpenEtcdStore(const EtcdStoreOptions& options) {
  MR_RETURN_IF_ERROR(CheckClusterName(options.cluster));
  MR_ASSIGN_OR_RETURN(auto client, EtcdClient::Create(options));
  return std::unique_ptr<Store>(
      std::make_unique<EtcdStore>(std::move(client), "/millrace/" + options.cluster + "/"));
}

}  // namespace millrace::cluster
