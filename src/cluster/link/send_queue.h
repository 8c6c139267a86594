// SendQueue: messages that wait to be written to one stream, bounded in number and bytes. gRPC
// writes one message at a time: the first in the queue is the one being written. Owned by the
// stream, whose lock guards it; not thread-safe.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <deque>

namespace millrace::cluster {

struct SendLimits {
  size_t messages = 4096;
  size_t bytes = size_t{128} << 20;
};

class SendQueue {
 public:
  explicit SendQueue(SendLimits limits) : limits_(limits) {}

  // False: the queue is full, because the peer reads too slowly. One message always fits.
  bool Push(grpc::ByteBuffer buffer) {
    const size_t bytes = buffer.Length();
    if (!queue_.empty() && (queue_.size() >= limits_.messages || bytes_ + bytes > limits_.bytes)) {
      return false;
    }
    bytes_ += bytes;
    queue_.push_back(std::move(buffer));
    return true;
  }
  const grpc::ByteBuffer* front() const { return &queue_.front(); }
  void Pop() {
    bytes_ -= queue_.front().Length();
    queue_.pop_front();
  }
  bool empty() const { return queue_.empty(); }

 private:
  const SendLimits limits_;
  std::deque<grpc::ByteBuffer> queue_;  // a deque, because growing it moves no message
  size_t bytes_ = 0;
};

}  // namespace millrace::cluster
