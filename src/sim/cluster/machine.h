// MachineModel: how long a modelled machine computes a batch, and how much KV fits beside its
// weights. Values by implementation; the simulation that uses one does not own it. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/clock.h"
#include "core/layer_range.h"
#include "cost/pace.h"
#include "cost/step_cost.h"

namespace millrace::sim {

// The rows of one pipeline's step that run through the same layers of a machine.
struct BatchPart {
  LayerRange layers;
  cost::BatchShape shape;
};

class MachineModel {
 public:
  virtual ~MachineModel() = default;
  // `parts` begin together at `begin`.
  virtual double BatchSeconds(std::span<const BatchPart> parts, Time begin) const = 0;
  // Token layers of KV beside the weights of these layers; 0: the weights do not fit.
  virtual int64_t KvTokenLayers(LayerRange layers) const = 0;
};

// One stage of an instance, whose cost is known as a whole: the layers are not told apart.
class StageMachine : public MachineModel {
 public:
  struct Options {
    const cost::StepCost* cost = nullptr;  // not owned
    int64_t kv_tokens = 0;                 // of the stage's layers
    // Varies the speed from this moment of it on. Null: constant speed. Not owned.
    const cost::Pace* pace = nullptr;
    double pace_from_s = 0;
  };
  explicit StageMachine(const Options& options) : options_(options) {}
  double BatchSeconds(std::span<const BatchPart> parts, Time begin) const override;
  int64_t KvTokenLayers(LayerRange layers) const override {
    return options_.kv_tokens * layers.size();
  }

 private:
  const Options options_;
};

// A machine that may hold any layers. Parts that are at the same layer run it together (Helix
// section 5, partial inference).
class LayeredMachine : public MachineModel {
 public:
  struct Options {
    const cost::StepCost* per_layer = nullptr;  // of one layer; not owned
    double overhead_s = 0;                      // per batch
    // Additional cost of tokens that leave the model here: the vocabulary projection. Null: none.
    const cost::StepCost* head = nullptr;
    int num_layers = 0;  // of the model
    std::function<int64_t(LayerRange)> kv_token_layers;
  };
  explicit LayeredMachine(Options options) : options_(std::move(options)) {}
  double BatchSeconds(std::span<const BatchPart> parts, Time begin) const override;
  int64_t KvTokenLayers(LayerRange layers) const override {
    return options_.kv_token_layers(layers);
  }

 private:
  const Options options_;
};

cost::BatchShape Sum(const cost::BatchShape& a, const cost::BatchShape& b);

}  // namespace millrace::sim
