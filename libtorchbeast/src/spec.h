// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What a server says about its environments (Spec in rpcenv.proto).
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "array.h"

namespace torchbeast {

// A rollout's keys of the recurrent state begin with this, so no observation and no output may have
// such a name.
inline constexpr char kCoreStatePrefix[] = "core_state/";

// One array of an observation.
struct Leaf {
  std::string name;
  DType dtype;
  Shape shape;           // of one environment
  int64_t stack = 1;     // > 1: shape[0] frames, of which a Step has only the newest
  int64_t set_size = 0;  // > 0: integers that each stand for one of so many things

  // The bytes of one environment: in a row, and in a Step.
  int64_t bytes() const { return NumElements(shape) * dtype.size(); }
  int64_t wire_bytes() const { return bytes() / stack; }

  bool operator==(const Leaf& other) const {
    return name == other.name && dtype == other.dtype && shape == other.shape &&
           stack == other.stack && set_size == other.set_size;
  }
};

struct Spec {
  int64_t num_envs = 0;  // of each stream
  std::vector<Leaf> observations;
  std::string action_kind;  // "discrete", "multi_discrete" or "box"
  Shape action_sizes;
  int64_t frames_per_step = 1;
  std::string name;  // of the environment

  // The dtype and shape of one environment's action.
  DType action_dtype() const { return action_kind == "box" ? kFloat32 : kInt64; }
  Shape action_shape() const {
    if (action_kind == "discrete") return {};
    return action_kind == "box" ? action_sizes : Shape{static_cast<int64_t>(action_sizes.size())};
  }
  // Makes an array [1, num_envs, ...] that is not initialised.
  Array MakeActions(int64_t num_envs) const {
    Shape shape = {1, num_envs};
    for (int64_t size : action_shape()) shape.push_back(size);
    return Array::Empty(action_dtype(), shape);
  }
  // Throws std::invalid_argument unless each action of `actions`, which has the dtype and shape of
  // MakeActions, is in its range.
  void CheckActions(const Array& actions) const {
    const int64_t count = NumElements(actions.shape());
    for (int64_t i = 0; i < count && actions.dtype() == kFloat32; ++i) {
      const float seen = actions.as<float>()[i];
      if (!std::isfinite(seen)) {
        throw std::invalid_argument("outputs: expected finite actions, seen " +
                                    std::to_string(seen));
      }
    }
    for (int64_t i = 0; i < count && actions.dtype() == kInt64; ++i) {
      const int64_t seen = actions.as<int64_t>()[i], size = action_sizes[i % action_sizes.size()];
      if (seen < 0 || seen >= size) {
        throw std::invalid_argument("outputs: expected actions from 0 to " +
                                    std::to_string(size - 1) + ", seen " + std::to_string(seen));
      }
    }
  }

  // The bytes of one environment's observations: in a row, and in a Step.
  int64_t observation_bytes() const {
    int64_t bytes = 0;
    for (const Leaf& leaf : observations) bytes += leaf.bytes();
    return bytes;
  }
  int64_t wire_bytes() const {
    int64_t bytes = 0;
    for (const Leaf& leaf : observations) bytes += leaf.wire_bytes();
    return bytes;
  }
  // At least the bytes of one environment's row: its observations, its last action, and 32 for its
  // other numbers.
  int64_t row_bytes() const {
    return observation_bytes() + NumElements(action_shape()) * action_dtype().size() + 32;
  }

  // Whether both describe the same environments. Their number may differ.
  bool Fits(const Spec& other) const {
    return name == other.name && observations == other.observations &&
           action_kind == other.action_kind && action_sizes == other.action_sizes &&
           frames_per_step == other.frames_per_step;
  }

  std::string describe() const {
    std::string text = name + ": ";
    for (const Leaf& leaf : observations) {
      text += leaf.name + " " + Describe(leaf.dtype, leaf.shape);
      if (leaf.stack > 1) text += " (a stack of frames)";
      if (leaf.set_size > 0) text += " (of " + std::to_string(leaf.set_size) + " things)";
      text += ", ";
    }
    text += action_kind + " actions";
    for (int64_t size : action_sizes) text += " " + std::to_string(size);
    return text + ", " + std::to_string(frames_per_step) + " frames per step";
  }
};

}  // namespace torchbeast
