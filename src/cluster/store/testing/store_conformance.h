// StoreConformance: the fixture of the store conformance suite. Its tests are in
// store_conformance_test.cc and leader_election_test.cc, and run for each kind of store that a
// binary instantiates.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "cluster/store/testing/store_fixture.h"

namespace millrace::cluster::testing {

class StoreConformance : public ::testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override { fixture_ = GetParam().make(); }
  void TearDown() override { fixture_.reset(); }
  StoreFixture& fixture() { return *fixture_; }
  std::shared_ptr<Store> Connect() { return fixture_->Connect(); }

 private:
  std::unique_ptr<StoreFixture> fixture_;
};

inline std::string KindName(const ::testing::TestParamInfo<StoreKind>& info) {
  return info.param.name;
}

}  // namespace millrace::cluster::testing
