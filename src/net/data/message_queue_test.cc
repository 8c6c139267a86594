#include "net/data/message_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "base/rng.h"
#include "base/testing/test_scale.h"

namespace millrace::net {
namespace {

using enum MessageClass;

Payload Bytes(size_t n) { return Payload::CopyOf(std::vector<std::byte>(n)); }

TEST(MessageQueue, AnUrgentMessageIsSentNext) {
  MessageQueue queue{DataPlaneLimits{}};
  ASSERT_TRUE(queue.SetWindows({16 << 20, 64 << 20, 256 << 20}).ok());
  ASSERT_TRUE(queue.Push(kBulk, {}, Bytes(8 << 20)).ok());
  OutFrame frame;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(queue.Next(frame));
  ASSERT_TRUE(queue.Push(kPrefill, {}, Bytes(1 << 20)).ok());
  ASSERT_TRUE(queue.Next(frame));
  EXPECT_EQ(frame.header.message_class, kPrefill);
  EXPECT_EQ(frame.header.payload_bytes, kFrameBytesMax);
  ASSERT_TRUE(queue.Push(kDecode, {}, Bytes(8192)).ok());
  ASSERT_TRUE(queue.Next(frame));
  EXPECT_EQ(frame.header.message_class, kDecode);
  ASSERT_TRUE(queue.Next(frame));
  EXPECT_EQ(frame.header.message_class, kPrefill);
  EXPECT_EQ(frame.header.type, FrameType::kMore);
  EXPECT_EQ(frame.header.value, kFrameBytesMax);
}

TEST(MessageQueue, NothingBeforeTheWindowsAreKnown) {
  MessageQueue queue{DataPlaneLimits{}};
  ASSERT_TRUE(queue.Push(kDecode, {}, Bytes(10)).ok());
  OutFrame frame;
  EXPECT_FALSE(queue.Next(frame));
  ASSERT_TRUE(queue.SetWindows({1 << 20, 1 << 20, 1 << 20}).ok());
  EXPECT_TRUE(queue.Next(frame));
  EXPECT_FALSE(queue.AddCredit(kDecode, (1 << 20) + 1).ok()) << "more than was used";
  EXPECT_FALSE(queue.AddCredit(kBulk, 1).ok());
  EXPECT_TRUE(queue.AddCredit(kDecode, 10 + kMessageCost).ok());
  EXPECT_FALSE(queue.AddCredit(kDecode, 1).ok());
}

// Against a model of the receiver: it never holds more than its window, each class arrives in order
// and complete, and when it releases everything, nothing stays queued.
TEST(MessageQueue, AgainstAReceiverThatReleasesAtRandom) {
  Rng rng(4);
  for (int round = 0; round < 30 * TestScale(); ++round) {
    const size_t window = static_cast<size_t>(rng.Between(kWindowBytesMin, 600'000));
    DataPlaneLimits limits;
    limits.window_bytes = {window, window, window};
    limits.queue_bytes = {300'000, 300'000, 300'000};
    MessageQueue queue(limits);
    ASSERT_TRUE(queue.SetWindows({window, window, window}).ok());
    struct Class {
      std::deque<size_t> pushed;  // payload bytes, not yet started
      size_t open_left = 0;       // of the message in progress
      bool open = false;
      size_t open_cost = 0, in_use = 0, returned = 0;
      std::deque<size_t> held;  // costs
      uint64_t next_id = 0;
      size_t pushed_bytes = 0;
    };
    std::array<Class, kMessageClasses> classes;
    OutFrame frame;
    const auto receive = [&] {
      Class& c = classes[static_cast<size_t>(frame.header.message_class)];
      for (size_t more_urgent = 0; more_urgent < static_cast<size_t>(frame.header.message_class);
           ++more_urgent) {
        const Class& u = classes[more_urgent];  // skipped only for lack of credit
        ASSERT_TRUE((u.pushed.empty() && !u.open) || u.in_use > window / 4);
      }
      size_t cost = frame.header.payload_bytes;
      if (frame.header.type == FrameType::kMessage) {
        ASSERT_FALSE(c.open);
        ASSERT_EQ(frame.header.value, c.pushed.front());
        ASSERT_EQ(frame.header.id, c.next_id);
        cost += kMessageCost;
        c.open = true;
        c.open_left = c.pushed.front();
        c.open_cost = 0;
        c.pushed.pop_front();
      }
      ASSERT_LE(frame.header.payload_bytes, kFrameBytesMax);
      const size_t data = frame.header.payload_bytes -
                          (frame.header.type == FrameType::kMessage ? frame.header.small : 0);
      ASSERT_LE(data, c.open_left);
      c.open_left -= data;
      c.open_cost += cost;
      c.in_use += cost;
      ASSERT_LE(c.in_use, window);
      if (c.open_left == 0) {
        c.held.push_back(c.open_cost);
        c.open = false;
        ++c.next_id;
      }
    };
    const auto let_go = [&](size_t index) {
      Class& c = classes[index];
      if (c.held.empty()) return;
      c.returned += c.held.front();
      c.held.pop_front();
      if (c.returned < CreditReturnBytes(window)) return;
      c.in_use -= c.returned;
      ASSERT_TRUE(queue.AddCredit(static_cast<MessageClass>(index), c.returned).ok());
      c.returned = 0;
    };
    for (int step = 0; step < 400; ++step) {
      const auto index = static_cast<size_t>(rng.Between(0, 2));
      switch (rng.Between(0, 2)) {
        case 0: {
          const auto size = static_cast<size_t>(rng.Between(0, static_cast<int64_t>(window)));
          const std::vector<std::byte> key(static_cast<size_t>(rng.Between(0, 60)));
          const Status status = queue.Push(static_cast<MessageClass>(index), key, Bytes(size));
          if (status.ok()) classes[index].pushed.push_back(size);
          const bool fits = size + key.size() + kMessageCost <= MessageBytesMax(window);
          ASSERT_EQ(status.code() == StatusCode::kInvalidArgument, !fits);
          break;
        }
        case 1:
          if (queue.Next(frame)) receive();
          break;
        default: let_go(index);
      }
    }
    for (bool any = true; any;) {  // the receiver reads and releases: all must arrive
      any = false;
      while (queue.Next(frame)) {
        receive();
        any = true;
      }
      for (size_t index = 0; index < classes.size(); ++index) {
        while (!classes[index].held.empty()) {
          let_go(index);
          any = true;
        }
      }
    }
    ASSERT_EQ(queue.messages(), 0u) << "stuck with a window of " << window;
    for (const Class& c : classes) EXPECT_TRUE(c.pushed.empty() && !c.open);
  }
}

}  // namespace
}  // namespace millrace::net
