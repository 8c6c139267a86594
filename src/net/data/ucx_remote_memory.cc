// RemoteMemory over UCX. One context and one worker for a plane; the worker lives on the loop's
// thread, which its descriptor wakes. See docs/decisions/0008-rdma.md.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <ucp/api/ucp.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "net/data/remote_memory.h"

namespace millrace::net {
namespace {

constexpr int kProgressRounds = 256;  // of a worker before others have their turn
constexpr Duration kCloseWithin = Duration::Seconds(30);

Status Failed(const char* what, ucs_status_t status) {
  return Unavailable(fmt::format("UCX cannot {}: {}", what, ucs_status_string(status)));
}

struct Context {
  ~Context() {
    if (handle != nullptr) ucp_cleanup(handle);
  }
  ucp_context_h handle = nullptr;
};

struct Registration {
  ~Registration() {
    if (handle != nullptr) ucp_mem_unmap(context->handle, handle);
  }
  std::shared_ptr<Context> context;
  std::span<const std::byte> memory;
  ucp_mem_h handle = nullptr;
  std::vector<std::byte> key;
};

struct UcxKey final : RemoteKey {
  explicit UcxKey(ucp_rkey_h key) : handle(key) {}
  ~UcxKey() override { ucp_rkey_destroy(handle); }
  const ucp_rkey_h handle;
};

class UcxMemory final : public RemoteMemory, public EventHandler {
 public:
  explicit UcxMemory(EventLoop& loop) : loop_(loop) {}
  ~UcxMemory() override {
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
  }

  Status Open(const std::string& transports);
  Result<std::shared_ptr<const void>> Register(std::span<const std::byte> memory) override;
  std::optional<Places> Find(std::span<const std::span<const std::byte>> segments) override;
  Result<std::unique_ptr<RemotePeer>> Connect(std::span<const std::byte> peer) override;

  // ---- the loop's thread
  ucp_worker_h worker() const { return worker_; }
  // Call after any request to the worker: work that it could not finish at once continues when it
  // is progressed.
  void ProgressSoon() {
    if (std::exchange(progress_posted_, true)) return;
    loop_.Post([this] {
      progress_posted_ = false;
      Progress();
    });
  }

 private:
  void OnEvents(uint32_t) override { Progress(); }
  void Progress();

  EventLoop& loop_;
  const std::shared_ptr<Context> context_ = std::make_shared<Context>();
  ucp_worker_h worker_ = nullptr;
  std::vector<std::byte> address_;
  bool progress_posted_ = false;

  Mutex mutex_;
  // By start address.
  std::map<const std::byte*, std::weak_ptr<const Registration>> registered_ MR_GUARDED_BY(mutex_);
};

class UcxPeer final : public RemotePeer {
 public:
  UcxPeer(UcxMemory& memory, ucp_ep_h endpoint) : memory_(memory), endpoint_(endpoint) {}
  ~UcxPeer() override;
  Result<std::unique_ptr<RemoteKey>> Key(std::span<const std::byte> packed) override;
  std::optional<Status> Read(const RemoteKey& key, uint64_t address, std::span<std::byte> to,
                             RemoteSink& sink) override;

 private:
  struct UnderWay {
    UcxPeer* peer;
    RemoteSink* sink;
  };
  static void OnEnd(void* request, ucs_status_t status, void* user);

  UcxMemory& memory_;
  const ucp_ep_h endpoint_;
  size_t under_way_ = 0;
};

// ---- of the plane

Status UcxMemory::Open(const std::string& transports) {
  ucp_config_t* config = nullptr;
  if (const auto s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) {
    return Failed("read its settings", s);
  }
  auto status = ucp_config_modify(config, "TLS", transports.c_str());
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // memory is registered on any thread
  if (status == UCS_OK) status = ucp_init(&params, config, &context_->handle);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return Failed(fmt::format("find a device with the transports {}", transports).c_str(), status);
  }
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // created here, used on the loop's thread
  status = ucp_worker_create(context_->handle, &worker, &worker_);
  if (status != UCS_OK) return Failed("create a worker", status);
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return Failed("return its address", status);
  const auto raw = std::as_bytes(std::span(reinterpret_cast<const char*>(address), bytes));
  address_.assign(raw.begin(), raw.end());
  ucp_worker_release_address(worker_, address);
  if (address_.size() > UINT16_MAX) return Internal("UCX's address is too long");
  int fd = -1;
  status = ucp_worker_get_efd(worker_, &fd);
  if (status != UCS_OK) return Failed("wake the loop", status);
  loop_.Watch(fd, EPOLLIN, this);
  loop_.Post([this] { Progress(); });
  return OkStatus();
}

void UcxMemory::Progress() {
  for (int round = 0; round < kProgressRounds; ++round) {
    if (ucp_worker_progress(worker_) != 0) continue;
    if (ucp_worker_arm(worker_) != UCS_ERR_BUSY) return;  // the descriptor will wake the loop
  }
  ProgressSoon();
}

Result<std::shared_ptr<const void>> UcxMemory::Register(std::span<const std::byte> memory) {
  auto made = std::make_shared<Registration>();
  made->context = context_;
  made->memory = memory;
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.address = const_cast<std::byte*>(memory.data());
  params.length = memory.size();
  params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ;
  auto status = ucp_mem_map(context_->handle, &params, &made->handle);
  if (status != UCS_OK) return Failed("register memory", status);
  void* key = nullptr;
  size_t bytes = 0;
  status = ucp_rkey_pack(context_->handle, made->handle, &key, &bytes);
  if (status != UCS_OK) return Failed("create a key to memory", status);
  const auto raw = std::as_bytes(std::span(static_cast<const char*>(key), bytes));
  made->key.assign(raw.begin(), raw.end());
  ucp_rkey_buffer_release(key);
  if (made->key.size() > UINT16_MAX) return Internal("UCX's key is too long");
  MutexLock lock(mutex_);
  std::erase_if(registered_, [](const auto& entry) { return entry.second.expired(); });
  registered_[memory.data()] = made;
  return std::shared_ptr<const void>(std::move(made));
}

std::optional<RemoteMemory::Places> UcxMemory::Find(
    std::span<const std::span<const std::byte>> segments) {
  RemoteOffer offer{.peer = address_};
  std::vector<std::shared_ptr<const void>> held;
  std::shared_ptr<const Registration> last;  // released after unlocking, like the others
  MutexLock lock(mutex_);
  for (const auto& segment : segments) {
    if (segment.empty()) continue;
    const auto it = registered_.upper_bound(segment.data());
    if (it == registered_.begin()) return std::nullopt;
    auto memory = std::prev(it)->second.lock();
    if (memory == nullptr ||
        segment.data() + segment.size() > memory->memory.data() + memory->memory.size()) {
      return std::nullopt;
    }
    const auto address = reinterpret_cast<uint64_t>(segment.data());
    if (memory != last) {
      offer.keys.push_back(memory->key);
      held.push_back(memory);
      last = std::move(memory);
    } else if (auto& before = offer.segments.back(); before.address + before.bytes == address) {
      before.bytes += segment.size();
      continue;
    }
    offer.segments.push_back({offer.keys.size() - 1, address, segment.size()});
  }
  return Places{EncodeOffer(offer), std::move(held)};
}

Result<std::unique_ptr<RemotePeer>> UcxMemory::Connect(std::span<const std::byte> peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // otherwise a read from a lost peer never ends
  params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t status) {
    MR_LOG(warn, "a peer's memory can no longer be read: {}", ucs_status_string(status));
  };
  ucp_ep_h endpoint = nullptr;
  const auto status = ucp_ep_create(worker_, &params, &endpoint);
  ProgressSoon();
  if (status != UCS_OK) return Failed("connect to a peer's memory", status);
  return std::unique_ptr<RemotePeer>(std::make_unique<UcxPeer>(*this, endpoint));
}

// ---- of a peer

UcxPeer::~UcxPeer() {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint_, &params);
  const SteadyClock clock;
  const Time end = clock.Now() + kCloseWithin;
  while (under_way_ > 0 ||
         (UCS_PTR_IS_PTR(closing) && ucp_request_check_status(closing) == UCS_INPROGRESS)) {
    ucp_worker_progress(memory_.worker());
    MR_CHECK(clock.Now() < end) << "the network card does not stop writing";
  }
  if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
  memory_.ProgressSoon();
}

Result<std::unique_ptr<RemoteKey>> UcxPeer::Key(std::span<const std::byte> packed) {
  ucp_rkey_h key = nullptr;
  const auto status = ucp_ep_rkey_unpack(endpoint_, packed.data(), &key);
  if (status != UCS_OK) return Failed("use a peer's key", status);
  return std::unique_ptr<RemoteKey>(std::make_unique<UcxKey>(key));
}

std::optional<Status> UcxPeer::Read(const RemoteKey& key, uint64_t address, std::span<std::byte> to,
                                    RemoteSink& sink) {
  auto under_way = std::make_unique<UnderWay>(UnderWay{this, &sink});
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = OnEnd;
  params.user_data = under_way.get();
  const ucs_status_ptr_t request = ucp_get_nbx(endpoint_, to.data(), to.size(), address,
                                               static_cast<const UcxKey&>(key).handle, &params);
  if (request == nullptr) return OkStatus();
  if (UCS_PTR_IS_ERR(request)) return Failed("read a peer's memory", UCS_PTR_STATUS(request));
  under_way.release();  // OnEnd owns it
  ++under_way_;
  memory_.ProgressSoon();
  return std::nullopt;
}

void UcxPeer::OnEnd(void* request, ucs_status_t status, void* user) {
  const std::unique_ptr<UnderWay> ended(static_cast<UnderWay*>(user));
  ucp_request_free(request);
  --ended->peer->under_way_;
  ended->sink->OnRead(status == UCS_OK ? OkStatus() : Failed("read a peer's memory", status));
}

}  // namespace

Result<std::unique_ptr<RemoteMemory>> OpenRemoteMemory(EventLoop& loop,
                                                       const std::string& transports) {
  auto memory = std::make_unique<UcxMemory>(loop);
  MR_RETURN_IF_ERROR(memory->Open(transports));
  return std::unique_ptr<RemoteMemory>(std::move(memory));
}

}  // namespace millrace::net
