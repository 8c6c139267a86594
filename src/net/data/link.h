// One connection of a data plane: socket, hello, frames in both directions. The connecting side
// sends messages and asks for pulls (OutgoingLink); the accepting side receives messages and serves
// pulls (IncomingLink). So two processes that send to each other have two connections, and neither
// waits behind the other's bulk data.
//
// Everything runs on the loop's thread, except Flush and where derived classes say otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "net/data/byte_stream.h"
#include "net/data/frame.h"
#include "net/data/frame_writer.h"
#include "net/data/link_host.h"

namespace millrace::net {

class Link : public EventHandler, public FrameSink, public std::enable_shared_from_this<Link> {
 public:
  // Ends the connection; the derived class handles the consequences. Only the first call counts.
  void Close(const Status& reason);
  bool closed() const { return closed_; }

  // Any thread: writes as much as may be written now. Small amounts are written on the caller's
  // thread, which saves waking the loop; the rest on the loop's.
  void Flush();
  // Any thread: makes the loop write.
  void FlushLater();

 protected:
  explicit Link(LinkHost& host) : host_(host), decoder_(*this) {}
  ~Link() override = default;

  // ---- implemented by a derived class

  // Any thread, one at a time: the next frame, if one may be sent.
  virtual bool NextFrame(OutFrame& out) = 0;
  // The connection is established; keys are agreed.
  virtual void OnConnected() = 0;
  // A whole message of the hello.
  virtual Status OnHello(std::span<const std::byte> message) = 0;
  virtual void OnClosed(const Status& reason) = 0;

  // ---- for use by a derived class

  void Adopt(UniqueFd socket, StreamSide side, bool connecting);
  void SendHello(std::vector<std::byte> message);
  // The hello is over: frames follow.
  void SetReady();
  bool ready() const { return ready_; }
  // Of the TLS session; empty without TLS.
  const std::vector<std::byte>& binding() const { return binding_; }
  HelloSecret secret() const { return {host_.options.token, binding_}; }
  void EndWithin(Duration limit, const char* what);  // unless SetReady is called first

  LinkHost& host_;

 private:
  static constexpr size_t kStagingBytes = 4096;

  void OnEvents(uint32_t events) override;
  void Connected();
  void Shake();
  void ReadHello();
  void ReadFrames();
  Status TakeRead(size_t bytes, size_t place_bytes);
  void Write(size_t budget_bytes);
  void SetInterest() MR_REQUIRES(write_mutex_);

  FrameDecoder decoder_;
  std::unique_ptr<ByteStream> stream_;
  std::vector<std::byte> binding_;
  std::vector<std::byte> hello_;
  std::array<std::byte, kStagingBytes> staging_;
  std::optional<EventLoop::Timer> hello_timer_;
  bool connecting_ = false;  // the socket is not connected yet
  bool shaking_ = false;     // TLS keys are not agreed yet
  std::atomic<bool> ready_ = false;
  std::atomic<bool> closed_ = false;

  Mutex write_mutex_;  // also of stream_ for writing; the loop's thread reads without it
  FrameWriter writer_ MR_GUARDED_BY(write_mutex_);
  bool blocked_ MR_GUARDED_BY(write_mutex_) = false;
  bool write_open_ MR_GUARDED_BY(write_mutex_) = false;
  std::atomic<bool> one_thread_ = false;
  std::atomic<bool> flush_wanted_ = false;
  std::atomic<bool> flush_posted_ = false;
  uint64_t frames_counted_ = 0;
};

}  // namespace millrace::net
