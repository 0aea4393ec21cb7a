// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Reads the messages that servers send. A server may be broken or hostile: whatever differs from
// rpcenv.proto throws StreamError. This file depends neither on gRPC nor on protobuf.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "array.h"
#include "reader.h"
#include "spec.h"
#include "step.h"
#include "transport.h"

namespace torchbeast {

constexpr int64_t kMaxBytes = int64_t{1} << 31;    // the limit of gRPC and protobuf for a message
constexpr int64_t kMaxEnvs = 1 << 16;              // of one stream
constexpr int64_t kMaxActions = int64_t{1} << 31;  // actions are sent as int32
constexpr int64_t kMaxReals = 1 << 16;             // the real numbers of one action
constexpr size_t kMaxLeaves = 256, kMaxAxes = 16, kMaxActionSizes = 1024;

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
    if (size < 0 || size >= kMaxBytes) {
      throw BadSpec(leaf.name + ": expected sizes from 0 to 2^31, seen " + std::to_string(size));
    }
    bytes *= std::max<int64_t>(size, 1);  // counts 0 as 1: strides must not overflow either
    if (bytes >= kMaxBytes) throw BadSpec(leaf.name + ": expected less than 2^31 bytes");
  }
  if (leaf.stack > 1 && (leaf.shape.empty() || leaf.shape[0] != leaf.stack)) {
    throw BadSpec(leaf.name + ": expected the shape of a stack of " + std::to_string(leaf.stack) +
                  " frames, [" + std::to_string(leaf.stack) + ", ...], seen " +
                  Describe(leaf.dtype, leaf.shape));
  }
}

inline Leaf DecodeLeaf(std::string_view message) {
  Leaf leaf;
  uint64_t dtype = 0, stack = 0, set_size = 0;
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
        leaf.shape = in.Varints(kMaxAxes);
        break;
      case 4:
        stack = in.Varint();
        break;
      case 5:
        set_size = in.Varint();
        break;
      default:
        in.Unknown();
    }
  }
  leaf.dtype = DTypeOf(leaf.name, dtype);
  leaf.stack = static_cast<int64_t>(std::clamp<uint64_t>(stack, 1, UINT32_MAX));
  leaf.set_size = static_cast<int64_t>(std::min<uint64_t>(set_size, UINT32_MAX));
  CheckLeaf(leaf);
  return leaf;
}

// Whether rollouts use this key for something else than observations.
inline bool IsReserved(std::string_view name) {
  static constexpr std::string_view others[] = {"last_action", "action", "policy_logits",
                                                "baseline", "policy_version"};
  bool found = std::find(std::begin(others), std::end(others), name) != std::end(others) ||
               name.rfind(kCoreStatePrefix, 0) == 0;
  ForEachStepField([&](const auto& field) { found = found || name == field.name; });
  return found;
}

// Adds the leaf. Throws if its name cannot be a rollout's key, or if the rows would be too large.
inline void AddLeaf(Leaf leaf, Spec* spec) {
  const auto has_its_name = [&](const Leaf& other) { return other.name == leaf.name; };
  const std::vector<Leaf>& leaves = spec->observations;
  if (leaf.name.empty() || IsReserved(leaf.name) ||
      std::any_of(leaves.begin(), leaves.end(), has_its_name)) {
    throw BadSpec("an observation may not be called '" + leaf.name +
                  "': expected a name that is not empty, not reserved and not used twice");
  }
  if (leaves.size() == kMaxLeaves) {
    throw BadSpec("expected at most " + std::to_string(kMaxLeaves) + " observations");
  }
  spec->observations.push_back(std::move(leaf));
  if (spec->observation_bytes() >= kMaxBytes) throw BadSpec("expected less than 2^31 bytes");
}

inline void CheckProtocol(uint64_t seen) {
  if (seen == kProtocol) return;
  throw BadSpec("expected protocol " + std::to_string(kProtocol) + ", seen " +
                std::to_string(seen));
}

inline void CheckActionSpace(const Spec& spec) {
  const bool is_box = spec.action_kind == "box", is_multi = spec.action_kind == "multi_discrete";
  const bool known = is_box || is_multi || spec.action_kind == "discrete";
  const size_t count = spec.action_sizes.size();
  const auto fits = [&](int64_t size) {
    return size >= 1 && size <= (is_box ? kMaxReals : kMaxActions);
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
  if (spec.num_envs < 1 || spec.num_envs > kMaxEnvs) {
    throw BadSpec("num_envs: expected 1 to " + std::to_string(kMaxEnvs) + ", seen " +
                  std::to_string(spec.num_envs));
  }
  CheckActionSpace(spec);
  if (spec.frames_per_step < 1 || spec.frames_per_step >= kMaxBytes) {
    throw BadSpec("frames_per_step: expected 1 to 2^31, seen " +
                  std::to_string(spec.frames_per_step));
  }
}

// Decodes and checks a serialized Spec.
inline Spec DecodeSpec(std::string_view message) {
  Spec spec;
  uint64_t protocol = 0;
  spec.frames_per_step = 0;
  Reader in("the server's Spec", message, /*repeated=*/3);
  while (in.Next()) {
    switch (in.field()) {
      case 1:
        protocol = in.Varint();
        CheckProtocol(protocol);  // at once, because another protocol may have other fields
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
        spec.action_sizes = in.Varints(kMaxActionSizes);
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

// Decodes serialized Steps, for one thread. Rollout::WriteStep checks whether they fit the Spec.
class StepDecoder {
 public:
  // The view is valid until the next call, and as long as the message.
  StepView Decode(std::string_view message) {
    StepView view;
    Reader in("a Step", message);
    while (in.Next()) {
      switch (in.field()) {
        case 1:
          view.observations = in.Bytes();
          break;
        case 9:
          view.environment_seconds = in.Float();
          break;
        default:
          if (!DecodeField(&in, &view)) in.Unknown();
      }
    }
    return view;
  }

 private:
  static constexpr size_t kNumFields = std::tuple_size_v<decltype(kStepFields)>;

  // Decodes a field of kStepFields. Returns false if the message is at another one.
  bool DecodeField(Reader* in, StepView* view) {
    bool found = false;
    size_t i = 0;
    ForEachStepField([&](const auto& field) {
      if (in->field() == static_cast<uint64_t>(field.number)) {
        DecodeValues(in, i, &(view->*field.span));
        found = true;
      }
      ++i;
    });
    return found;
  }

  static void DecodeValues(Reader* in, size_t, Span<bool>* values) { *values = in->Bools(); }
  // Copies the numbers, because they are not aligned in a message.
  template <class T>
  void DecodeValues(Reader* in, size_t i, Span<T>* values) {
    *values = in->Numbers(&std::get<Copies<T>>(copies_)[i]);
  }

  template <class T>
  using Copies = std::array<std::vector<T>, kNumFields>;  // by the field's place in kStepFields
  std::tuple<Copies<float>, Copies<int32_t>> copies_;
};

}  // namespace torchbeast
