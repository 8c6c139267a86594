// How many pulls are in flight at once, and what happens to those that fail.
#include "cluster/transfer/pull_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace millrace::cluster {
namespace {

constexpr size_t kParts = 40, kPartBytes = 1000;

std::unique_ptr<net::DataPlane> StartPlane(net::PullHandler on_pull) {
  net::TcpDataPlaneOptions options;
  options.token = "a token";
  net::DataPlaneEvents events;
  events.on_pull = std::move(on_pull);
  return std::move(*net::StartTcpDataPlane(std::move(options), std::move(events)));
}

class PullWindow : public ::testing::Test {
 protected:
  ~PullWindow() override {
    reader_->Stop();
    owner_->Stop();
  }

  PullSteps Steps() {
    PullSteps steps;
    steps.order = [this](size_t) {
      most_ = std::max(most_, ++under_way_);
      return PullOrder{owner_->self(), {std::byte{1}}, kPartBytes};
    };
    steps.arrived = [this](size_t part, const Status& status,
                           std::span<const std::byte> bytes) -> Result<bool> {
      --under_way_;
      MR_RETURN_IF_ERROR(status);
      EXPECT_EQ(bytes.size(), kPartBytes);
      ++arrived_;
      if (part == lost_) return DataLoss("it is bad");
      return part == again_ && agains_-- > 0;
    };
    return steps;
  }

  const std::shared_ptr<const std::vector<std::byte>> bytes_ =
      std::make_shared<const std::vector<std::byte>>(kPartBytes);
  std::unique_ptr<net::DataPlane> owner_ =
      StartPlane([this](const net::PeerAddress&, std::span<const std::byte>) {
        return net::PullSource(net::PullSegments{{std::span(*bytes_)}, bytes_});
      });
  std::unique_ptr<net::DataPlane> reader_ = StartPlane(nullptr);
  int under_way_ = 0, most_ = 0;
  size_t arrived_ = 0;
  std::optional<size_t> again_, lost_;
  int agains_ = 0;
};

TEST_F(PullWindow, AFewPartsAreInFlight) {
  ASSERT_TRUE(PullParts(*reader_, kParts, Steps()).ok());
  EXPECT_EQ(arrived_, kParts);
  EXPECT_EQ(most_, kPullsInFlight);
}

TEST_F(PullWindow, APartIsPulledAgainUntilTheCallerAcceptsIt) {
  again_ = kParts - 1;
  agains_ = 2;
  ASSERT_TRUE(PullParts(*reader_, kParts, Steps()).ok());
  EXPECT_EQ(arrived_, kParts + 2);
}

TEST_F(PullWindow, TheFirstErrorEndsThePull) {
  lost_ = 3;
  EXPECT_EQ(PullParts(*reader_, kParts, Steps()).code(), StatusCode::kDataLoss);
  EXPECT_LT(arrived_, kParts);
}

}  // namespace
}  // namespace millrace::cluster
