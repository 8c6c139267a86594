#include "net/http/session_group.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include "base/check.h"
#include "base/mutex.h"
#include "base/task_barrier.h"
#include "net/http/session_asio.h"

namespace millrace::net {

void SessionHub::Start(UniqueFd fd, std::string peer, bool refused) {
  tcp::socket socket(io);
  error_code ec;
  socket.assign(tcp::v4(), fd.get(), ec);  // the family matters only for opening
  if (!ec) {
    fd.Release();
    socket.non_blocking(true, ec);
    socket.set_option(
        asio::socket_base::send_buffer_size(static_cast<int>(options.send_buffer_bytes)), ec);
  }
  if (ec || cut || (refused && tls)) return Ended(nullptr);
  auto session = std::make_shared<Session>(*this, std::move(socket), std::move(peer), refused);
  sessions.insert(session.get());
  Session::Spawn(std::move(session));
}

void SessionHub::Ended(Session* session) {
  sessions.erase(session);
  MutexLock lock(mutex);
  if (--count == 0) empty.notify_all();
}

// Checks every deadline a few times per shortest limit, which is cheaper than a timer for each
// connection.
awaitable<void> SessionHub::Sweep() {
  Duration period = kSweepMax;
  for (Duration limit : {options.head_timeout, options.idle_timeout, options.body_grace,
                         options.write_timeout, options.linger_timeout}) {
    period = std::min(period, Duration{limit.ns / 8});
  }
  period = std::max(period, kSweepMin);
  while (work.owns_work()) {
    sweep_timer.expires_after(Chrono(period));
    co_await sweep_timer.async_wait(kAwait);
    const SteadyTime now = std::chrono::steady_clock::now();
    for (Session* session : sessions) {
      session->CheckDeadline(now);
      session->CheckListener(now);
    }
  }
}

SessionGroup::SessionGroup(const HttpServerOptions& options, HttpHandler handler, TlsContext tls,
                           BodyMemory& bodies)
    : hub_(std::make_unique<SessionHub>(options, std::move(handler), std::move(tls), bodies)) {
  asio::co_spawn(hub_->io, hub_->Sweep(), asio::detached);
  hub_->thread = std::thread([hub = hub_.get()] {
    while (!RunTask("a connection", [hub] { hub->io.run(); })) {
    }
  });
}

SessionGroup::~SessionGroup() {
  MR_CHECK(size() == 0) << "connections are left";
  asio::post(hub_->io, [hub = hub_.get()] {
    hub->work.reset();
    hub->sweep_timer.cancel();
  });
  hub_->thread.join();
}

void SessionGroup::Add(UniqueFd socket, std::string peer) {
  ++hub_->count;
  asio::post(hub_->io,
             [hub = hub_.get(), fd = std::move(socket), peer = std::move(peer)]() mutable {
               hub->Start(std::move(fd), std::move(peer), /*refused=*/false);
             });
}

void SessionGroup::Refuse(UniqueFd socket) {
  ++hub_->count;
  asio::post(hub_->io, [hub = hub_.get(), fd = std::move(socket)]() mutable {
    hub->Start(std::move(fd), "", /*refused=*/true);
  });
}

void SessionGroup::UseTls(TlsContext tls) {
  asio::post(hub_->io, [hub = hub_.get(), tls = std::move(tls)] { hub->UseTls(tls); });
}

size_t SessionGroup::size() const { return hub_->count; }

void SessionGroup::Drain() {
  hub_->draining = true;
  asio::post(hub_->io, [hub = hub_.get()] {
    for (Session* session : hub->sessions) session->Notify();
  });
}

void SessionGroup::CutAll() {
  asio::post(hub_->io, [hub = hub_.get()] {
    hub->cut = true;
    for (Session* session : hub->sessions) session->Abort();
  });
}

bool SessionGroup::WaitUntilEmpty(Duration limit) {
  MutexLock lock(hub_->mutex);
  return hub_->empty.wait_for(lock, Chrono(limit), [&] { return hub_->count == 0; });
}

}  // namespace millrace::net
