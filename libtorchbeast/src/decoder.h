// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What servers send, read from its bytes. Whoever sent it may be broken or hostile: what is not as
// rpcenv.proto says throws StreamError. Knows neither gRPC nor protobuf.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "array.h"
#include "reader.h"
#include "spec.h"
#include "transport.h"

namespace torchbeast {

constexpr int64_t kMostBytes = int64_t{1} << 31;  // gRPC's and protobuf's limit for a message
constexpr int64_t kMostEnvs = 1 << 20;
constexpr int64_t kMostActions = int64_t{1} << 31;  // they travel as int32
constexpr int64_t kMostReals = 1 << 16;             // of one action
constexpr size_t kMostLeaves = 256, kMostAxes = 16, kMostChoices = 1024;

inline StreamError BadSpec(const std::string& what) {
  return StreamError("INVALID_ARGUMENT", "the server's Spec: " + what);
}

inline DType DTypeOf(const std::string& name, uint64_t number) {
  static constexpr DType known[] = {kBool,
                                    kUInt8,
                                    {Kind::kInt, 8},
                                    {Kind::kUInt, 16},
                                    {Kind::kInt, 16},
                                    {Kind::kUInt, 32},
                                    kInt32,
                                    {Kind::kUInt, 64},
                                    kInt64,
                                    {Kind::kFloat, 16},
                                    {Kind::kBFloat, 16},
                                    kFloat32,
                                    {Kind::kFloat, 64}};
  if (number >= 1 && number <= std::size(known)) return known[number - 1];
  throw BadSpec(name + ": dtype " + std::to_string(static_cast<int64_t>(number)) + " is unknown");
}

inline void CheckLeaf(const Leaf& leaf) {
  int64_t bytes = leaf.dtype.size();
  for (int64_t size : leaf.shape) {
    if (size < 0 || size >= kMostBytes) {
      throw BadSpec(leaf.name + ": expected sizes from 0 to 2^31, seen " + std::to_string(size));
    }
    bytes *= std::max<int64_t>(size, 1);  // also strides must not overflow
    if (bytes >= kMostBytes) throw BadSpec(leaf.name + ": expected less than 2^31 bytes");
  }
  if (leaf.stack > 1 && (leaf.shape.empty() || leaf.shape[0] != leaf.stack)) {
    throw BadSpec(leaf.name + ": expected the shape of a stack of " + std::to_string(leaf.stack) +
                  " frames, [" + std::to_string(leaf.stack) + ", ...], seen " +
                  Describe(leaf.dtype, leaf.shape));
  }
}

inline Leaf DecodeLeaf(std::string_view message) {
  Leaf leaf;
  uint64_t dtype = 0, stack = 0;
  Reader in("the server's Spec: an observation", message);
  while (in.Next()) {
    switch (in.field()) {
      case 1:
        leaf.name = in.Text();
        break;
      case 2:
        dtype = in.Varint();
        break;
      case 3:
        leaf.shape = in.Varints(kMostAxes);
        break;
      case 4:
        stack = in.Varint();
        break;
      default:
        in.Unknown();
    }
  }
  leaf.dtype = DTypeOf(leaf.name, dtype);
  leaf.stack = static_cast<int64_t>(std::clamp<uint64_t>(stack, 1, UINT32_MAX));
  CheckLeaf(leaf);
  return leaf;
}

// Adds the leaf unless the rows have its name already, or would become too large.
inline void AddLeaf(Leaf leaf, Spec* spec) {
  // The rows' other keys (README, "The picture").
  static constexpr std::string_view taken[] = {"reward",         "done",         "terminated",
                                               "truncated",      "episode_over", "episode_step",
                                               "episode_return", "last_action",  "action",
                                               "policy_logits",  "baseline",     "policy_version"};
  const auto is_its = [&](const Leaf& other) { return other.name == leaf.name; };
  const std::vector<Leaf>& leaves = spec->observations;
  if (leaf.name.empty() || leaf.name.rfind("core_state/", 0) == 0 ||
      std::find(std::begin(taken), std::end(taken), leaf.name) != std::end(taken) ||
      std::any_of(leaves.begin(), leaves.end(), is_its)) {
    throw BadSpec("an observation may not be called '" + leaf.name + "', or not twice");
  }
  if (leaves.size() == kMostLeaves) {
    throw BadSpec("expected at most " + std::to_string(kMostLeaves) + " observations");
  }
  spec->observations.push_back(std::move(leaf));
  if (spec->observation_bytes() >= kMostBytes) throw BadSpec("expected less than 2^31 bytes");
}

inline void CheckProtocol(uint64_t seen) {
  if (seen == kProtocol) return;
  throw BadSpec("expected protocol " + std::to_string(kProtocol) + ", seen " +
                std::to_string(seen));
}

inline void CheckActions(const Spec& spec) {
  const bool is_box = spec.action_kind == "box", is_multi = spec.action_kind == "multi_discrete";
  const bool known = is_box || is_multi || spec.action_kind == "discrete";
  const size_t count = spec.action_sizes.size();
  const auto fits = [&](int64_t size) {
    return size >= 1 && size <= (is_box ? kMostReals : kMostActions);
  };
  if (known && (is_multi ? count >= 1 : count == 1) &&
      std::all_of(spec.action_sizes.begin(), spec.action_sizes.end(), fits)) {
    return;
  }
  throw BadSpec(
      "expected discrete actions of one size, multi_discrete ones of one or more, 1 to 2^31, or a "
      "box of one, 1 to 2^16, seen " +
      Printable(spec.action_kind) + " actions, " + Describe(kInt64, spec.action_sizes));
}

inline void CheckSpec(const Spec& spec) {
  if (spec.num_envs < 1 || spec.num_envs > kMostEnvs) {
    throw BadSpec("num_envs: expected 1 to " + std::to_string(kMostEnvs) + ", seen " +
                  std::to_string(spec.num_envs));
  }
  CheckActions(spec);
  if (spec.frames_per_step < 1 || spec.frames_per_step >= kMostBytes) {
    throw BadSpec("frames_per_step: expected 1 to 2^31, seen " +
                  std::to_string(spec.frames_per_step));
  }
}

// A serialized Spec, checked.
inline Spec DecodeSpec(std::string_view message) {
  Spec spec;
  uint64_t protocol = 0;
  spec.frames_per_step = 0;
  Reader in("the server's Spec", message, /*repeated=*/3);
  while (in.Next()) {
    switch (in.field()) {
      case 1:
        protocol = in.Varint();
        CheckProtocol(protocol);  // before anything that another one may have
        break;
      case 2:
        spec.num_envs = static_cast<int64_t>(in.Varint());
        break;
      case 3:
        AddLeaf(DecodeLeaf(in.Bytes()), &spec);
        break;
      case 4:
        spec.action_kind = in.Text();
        break;
      case 5:
        spec.action_sizes = in.Varints(kMostChoices);
        break;
      case 6:
        spec.frames_per_step = static_cast<int64_t>(in.Varint());
        break;
      case 7:
        spec.name = in.Text();
        break;
      default:
        in.Unknown();
    }
  }
  CheckProtocol(protocol);
  CheckSpec(spec);
  return spec;
}

// Serialized Steps. Whether they fit a Spec is for Rollout::WriteStep.
class StepDecoder {
 public:
  // Valid until the next call, and as long as the message.
  StepView Decode(std::string_view message) {
    StepView view;
    Reader in("a Step", message);
    while (in.Next()) {
      switch (in.field()) {
        case 1:
          view.observations = in.Bytes();
          break;
        case 2:
          view.reward = in.Numbers(&reward_);
          break;
        case 3:
          view.done = in.Bools();
          break;
        case 4:
          view.terminated = in.Bools();
          break;
        case 5:
          view.truncated = in.Bools();
          break;
        case 6:
          view.episode_over = in.Bools();
          break;
        case 7:
          view.episode_step = in.Numbers(&episode_step_);
          break;
        case 8:
          view.episode_return = in.Numbers(&episode_return_);
          break;
        case 9:
          view.environment_seconds = in.Float();
          break;
        default:
          in.Unknown();
      }
    }
    return view;
  }

 private:
  std::vector<float> reward_, episode_return_;  // copies: a message's numbers are not aligned
  std::vector<int32_t> episode_step_;
};

}  // namespace torchbeast
