// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What a server says of its environments (rpcenv.proto, Spec).
#pragma once

#include <string>
#include <vector>

#include "array.h"

namespace torchbeast {

struct Leaf {
  std::string name;
  DType dtype;
  Shape shape;        // of one environment's
  int64_t stack = 1;  // > 1: a stack of as many frames, shape[0], of which the newest travels

  // Of one environment's, in a row and in a Step.
  int64_t bytes() const { return NumElements(shape) * dtype.size(); }
  int64_t wire_bytes() const { return bytes() / stack; }

  bool operator==(const Leaf& other) const {
    return name == other.name && dtype == other.dtype && shape == other.shape &&
           stack == other.stack;
  }
};

struct Spec {
  int64_t num_envs = 0;
  std::vector<Leaf> observations;
  std::string action_kind;
  Shape action_sizes;
  int64_t frames_per_step = 1;
  std::string name;  // the environment's

  // Of one environment's action.
  DType action_dtype() const { return action_kind == "box" ? kFloat32 : kInt64; }
  Shape action_shape() const {
    if (action_kind == "discrete") return {};
    return action_kind == "box" ? action_sizes : Shape{static_cast<int64_t>(action_sizes.size())};
  }
  // [1, num_envs, ...], not initialised.
  Array MakeActions(int64_t num_envs) const {
    Shape shape = {1, num_envs};
    for (int64_t size : action_shape()) shape.push_back(size);
    return Array::Empty(action_dtype(), shape);
  }

  // Bytes of one environment's observations, in a row and in a Step.
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

  // Whether both are the same environments; their number may differ.
  bool Fits(const Spec& other) const {
    return name == other.name && observations == other.observations &&
           action_kind == other.action_kind && action_sizes == other.action_sizes &&
           frames_per_step == other.frames_per_step;
  }

  std::string describe() const {
    std::string text = name + ": ";
    for (const Leaf& leaf : observations) {
      text += leaf.name + " " + Describe(leaf.dtype, leaf.shape);
      text += leaf.stack > 1 ? " (a stack of frames), " : ", ";
    }
    text += action_kind + " actions";
    for (int64_t size : action_sizes) text += " " + std::to_string(size);
    return text + ", " + std::to_string(frames_per_step) + " frames per step";
  }
};

}  // namespace torchbeast
