#include "base/task_barrier.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>

namespace millrace {
namespace {

TEST(TaskBarrier, AnExceptionEndsItsTaskOnly) {
  EXPECT_TRUE(RunTask("a task", [] {}));
  EXPECT_FALSE(RunTask("a task", [] { throw std::runtime_error("by design"); }));
  EXPECT_FALSE(RunTask("a task", [] { throw std::bad_alloc(); }));
  EXPECT_FALSE(RunTask("a task", [] { throw 3; }));
}

TEST(TaskBarrier, WhatTheTaskHeldIsReleased) {
  const auto held = std::make_shared<int>(1);
  EXPECT_FALSE(RunTask("a task", [&] {
    const std::shared_ptr<int> copy = held;
    throw std::bad_alloc();
  }));
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace millrace
