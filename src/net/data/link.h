// One connection of a data plane: socket, hello, frames both ways. The side that connects sends
// messages and asks for pulls (OutgoingLink), the side that accepts takes and serves them
// (IncomingLink), so two processes that send to each other have two connections and neither waits
// behind the other's bulk.
//
// Everything happens on the loop's thread, but for Flush and what the derived classes say.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/data/byte_stream.h"
#include "net/data/frame.h"
#include "net/data/frame_writer.h"
#include "net/data/link_host.h"

namespace millrace::net {

class Link : public EventHandler, public FrameSink, public std::enable_shared_from_this<Link> {
 public:
  // Ends the connection; the derived class says what follows from it. Once, further calls are void.
  void Close(const Status& reason);
  bool closed() const { return closed_; }

  // Any thread: writes what may be written now. Small amounts on the caller's thread, which saves
  // waking the loop; the rest on the loop's.
  void Flush();
  // Any thread: has the loop write.
  void FlushLater();

 protected:
  explicit Link(LinkHost& host) : host_(host), decoder_(*this) {}
  ~Link() override = default;

  // ---- what a derived class provides

  // Any thread, one at a time: the next frame, if one may be sent.
  virtual bool NextFrame(OutFrame& out) = 0;
  // The connection stands; keys are agreed.
  virtual void OnConnected() = 0;
  // A whole message of the hello.
  virtual Status OnHello(std::span<const std::byte> message) = 0;
  virtual void OnClosed(const Status& reason) = 0;

  // ---- what it may use

  void Adopt(UniqueFd socket, StreamSide side, bool connecting);
  void SendHello(std::vector<std::byte> message);
  // The hello is over: frames from now on.
  void SetReady();
  bool ready() const { return ready_; }
  // Of the TLS session; empty without.
  const std::vector<std::byte>& binding() const { return binding_; }
  HelloSecret secret() const { return {host_.options.token, binding_}; }
  void EndWithin(Duration limit, const char* what);  // unless SetReady comes first

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
  void SetInterest();  // with write_mutex_

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

  std::mutex write_mutex_;  // stream_ for writing, writer_, blocked_, write_open_
  FrameWriter writer_;
  bool blocked_ = false;
  bool write_open_ = false;
  std::atomic<bool> one_thread_ = false;
  std::atomic<bool> flush_wanted_ = false;
  std::atomic<bool> flush_posted_ = false;
  uint64_t frames_counted_ = 0;
};

}  // namespace millrace::net
