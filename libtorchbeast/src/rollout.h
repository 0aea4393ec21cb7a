// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "spec.h"
#include "transport.h"

namespace torchbeast {

// T+1 rows of N environments in the making: a dict of arrays [T+1, N, ...] that Steps from a server
// and answers of the network are written into. Used by one thread.
//
// WriteStep is the decoder: it checks all of a Step before it copies any of it, and throws
// StreamError with what was expected and what was seen.
class Rollout {
 public:
  Rollout(const Spec& spec, int64_t num_envs, int64_t unroll_length)
      : spec_(spec), N_(num_envs), rows_(unroll_length + 1) {
    for (const Leaf& leaf : spec.observations) {
      Shape shape = {rows_, N_};
      shape.insert(shape.end(), leaf.shape.begin(), leaf.shape.end());
      step_.emplace_back(leaf.name, Array::Empty(leaf.dtype, shape));
    }
    for (const auto& [name, dtype] :
         std::vector<std::pair<const char*, DType>>{{"reward", kFloat32},
                                                    {"done", kBool},
                                                    {"terminated", kBool},
                                                    {"truncated", kBool},
                                                    {"episode_over", kBool},
                                                    {"episode_step", kInt32},
                                                    {"episode_return", kFloat32}}) {
      step_.emplace_back(name, Array::Empty(dtype, {rows_, N_}));
    }
    Shape shape = {rows_, N_};
    for (int64_t size : spec.action_shape()) shape.push_back(size);
    step_.emplace_back("last_action", Array::Empty(spec.action_dtype(), shape));
  }

  // Row t: what the server answered to `actions` (as Spec::MakeActions has them; whatever they are
  // for a reset, which is row 0). The older frames of stacks come from row t - 1.
  void WriteStep(int64_t t, const StepView& step, const Array& actions) {
    Check(step);
    if (t == 0) CheckFirst(step);
    const char* observations = step.observations.data();
    size_t i = 0;
    for (const Leaf& leaf : spec_.observations) {
      const int64_t bytes = N_ * leaf.wire_bytes();
      if (leaf.stack > 1) {
        WriteStack(leaf, t, observations, step.episode_step.data, step_[i].second);
      } else if (bytes > 0) {
        std::memcpy(step_[i].second.Row(t).data(), observations, bytes);
      }
      observations += bytes;
      ++i;
    }
    const auto copy = [&](const auto& span) {
      std::memcpy(step_[i++].second.Row(t).data(), span.data, span.size * sizeof(*span.data));
    };
    copy(step.reward);
    copy(step.done);
    copy(step.terminated);
    copy(step.truncated);
    copy(step.episode_over);
    copy(step.episode_step);
    copy(step.episode_return);
    const Array last_action = step_[i].second.Row(t);
    const int64_t size = last_action.column_bytes();
    for (int64_t n = 0; n < N_; ++n) {
      uint8_t* column = last_action.data() + n * size;
      if (step.done.data[n]) {
        std::memset(column, 0, size);
      } else {
        std::memcpy(column, actions.data() + n * size, size);
      }
    }
  }

  // Row t's part of a Step, [1, N, ...] in this rollout's memory: the network's inputs.
  Dict StepAt(int64_t t) const {
    Dict row;
    for (const auto& [name, array] : step_) row.emplace_back(name, array.Row(t));
    return row;
  }

  // Row t's part of the network's: arrays [1, N, ...], the same names in every row. Throws
  // std::invalid_argument otherwise, or where a name is one of the environment's.
  void WriteOutputs(int64_t t, const Dict& outputs) {
    if (outputs_.empty()) {
      for (const auto& [name, array] : outputs) {
        if (Find(step_, name) != nullptr || name.rfind(kState, 0) == 0) {
          throw std::invalid_argument("output " + name +
                                      ": expected a name that is not the environment's");
        }
        Shape shape = array.shape();
        if (shape.size() < 2 || shape[0] != 1 || shape[1] != N_) {
          throw std::invalid_argument("output " + name + ": expected [1, " + std::to_string(N_) +
                                      ", ...], seen " + array.describe());
        }
        shape[0] = rows_;
        outputs_.emplace_back(name, Array::Empty(array.dtype(), shape));
      }
    }
    if (outputs.size() != outputs_.size()) {
      throw std::invalid_argument("outputs: expected " + Names(outputs_) + "; seen " +
                                  Names(outputs));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Array row = outputs_[i].second.Row(t);
      const Array& seen = outputs[i].second;
      if (outputs[i].first != outputs_[i].first || !(row.dtype() == seen.dtype()) ||
          row.shape() != seen.shape()) {
        throw std::invalid_argument("outputs: expected " + outputs_[i].first + " " +
                                    row.describe() + "; seen " + outputs[i].first + " " +
                                    seen.describe());
      }
      if (row.bytes() > 0) std::memcpy(row.data(), seen.data(), row.bytes());
    }
  }

  // The next rollout: its row 0 is this one's last, bit for bit.
  Rollout Next() const {
    Rollout next(spec_, N_, rows_ - 1);
    for (const auto& [name, array] : outputs_) {
      next.outputs_.emplace_back(name, Array::Empty(array.dtype(), array.shape()));
    }
    const auto copy = [this](const Dict& from, const Dict& to) {
      for (size_t i = 0; i < from.size(); ++i) {
        const Array last = from[i].second.Row(rows_ - 1);
        if (last.bytes() > 0) std::memcpy(to[i].second.data(), last.data(), last.bytes());
      }
    };
    copy(step_, next.step_);
    copy(outputs_, next.outputs_);
    return next;
  }

  // All of it, with the state that was given to the network at row 0 as core_state/0, 1, ...
  Dict Finish(const Arrays& initial_core_state) const {
    Dict rollout = step_;
    rollout.insert(rollout.end(), outputs_.begin(), outputs_.end());
    for (size_t i = 0; i < initial_core_state.size(); ++i) {
      rollout.emplace_back(kState + std::to_string(i), initial_core_state[i]);
    }
    return rollout;
  }

 private:
  static constexpr const char* kState = "core_state/";

  static StreamError Mismatch(const std::string& what, const std::string& expected,
                              const std::string& seen) {
    return StreamError("INVALID_ARGUMENT",
                       "a Step's " + what + ": expected " + expected + ", seen " + seen);
  }

  // Row t of a stack: all frames but the oldest of the row before, or zeros where a game begins
  // (rpcenv.proto, Leaf, says why there), and the newest, `frames` [N, ...].
  void WriteStack(const Leaf& leaf, int64_t t, const char* frames, const int32_t* episode_step,
                  const Array& rows) const {
    const int64_t size = leaf.bytes(), frame = leaf.wire_bytes(), older = size - frame;
    if (size == 0) return;
    uint8_t* row = rows.Row(t).data();
    for (int64_t n = 0; n < N_; ++n, row += size, frames += frame) {
      if (episode_step[n] == 0) {
        std::memset(row, 0, older);
      } else {
        std::memcpy(row, row - N_ * size + frame, older);
      }
      std::memcpy(row + older, frames, frame);
    }
  }

  void Check(const StepView& step) const {
    const int64_t bytes = N_ * spec_.wire_bytes();
    const int64_t seen = step.observations.size();
    if (seen != bytes) {
      throw Mismatch("observations", std::to_string(bytes) + " bytes", std::to_string(seen));
    }
    const auto count = [this](const char* name, int64_t size) {
      if (size != N_) {
        throw Mismatch(name, std::to_string(N_) + " values", std::to_string(size));
      }
    };
    count("reward", step.reward.size);
    count("done", step.done.size);
    count("terminated", step.terminated.size);
    count("truncated", step.truncated.size);
    count("episode_over", step.episode_over.size);
    count("episode_step", step.episode_step.size);
    count("episode_return", step.episode_return.size);
    for (int64_t n = 0; n < N_; ++n) {
      if (!std::isfinite(step.reward.data[n])) {
        throw Mismatch("reward", "finite numbers", std::to_string(step.reward.data[n]));
      }
      if (!std::isfinite(step.episode_return.data[n])) {
        throw Mismatch("episode_return", "finite numbers",
                       std::to_string(step.episode_return.data[n]));
      }
    }
    CheckValues(step.observations);
  }

  // A byte that is neither 0 nor 1 is no bool, and undefined behaviour in whatever reads it as one.
  // A number that is not finite would end the learner, and not only the stream that it came from.
  void CheckValues(std::string_view observations) const {
    for (const Leaf& leaf : spec_.observations) {
      const int64_t bytes = N_ * leaf.wire_bytes();
      if (!AllFinite(leaf.dtype, observations.substr(0, bytes))) {
        throw Mismatch(leaf.name, "finite numbers", "others");
      }
      if (leaf.dtype == kBool) {
        uint8_t bits = 0;
        for (int64_t i = 0; i < bytes; ++i) bits |= static_cast<uint8_t>(observations[i]);
        if (bits > 1) throw Mismatch(leaf.name + " (bool)", "bytes 0 and 1", "others");
      }
      observations.remove_prefix(bytes);
    }
  }

  // The exponent's bits are all ones in infinities and NaN.
  static bool AllFinite(DType dtype, std::string_view memory) {
    if (dtype.kind == Kind::kBFloat) return NoneHasAll<uint16_t>(0x7f80, memory);
    if (dtype.kind != Kind::kFloat) return true;
    if (dtype.bits == 16) return NoneHasAll<uint16_t>(0x7c00, memory);
    if (dtype.bits == 32) return NoneHasAll<uint32_t>(0x7f800000, memory);
    return NoneHasAll<uint64_t>(0x7ff0000000000000, memory);
  }

  template <class Bits>
  static bool NoneHasAll(Bits mask, std::string_view memory) {
    bool found = false;
    for (size_t i = 0; i + sizeof(Bits) <= memory.size(); i += sizeof(Bits)) {
      Bits bits;
      std::memcpy(&bits, memory.data() + i, sizeof(Bits));  // may be unaligned
      found |= (bits & mask) == mask;
    }
    return !found;
  }

  // A stack's row 0 has none before it.
  void CheckFirst(const StepView& step) const {
    bool stacks = false;
    for (const Leaf& leaf : spec_.observations) stacks = stacks || leaf.stack > 1;
    for (int64_t n = 0; n < N_; ++n) {
      if (!step.done.data[n]) throw Mismatch("done, at a reset", "true everywhere", "false");
      if (stacks && step.episode_step.data[n] != 0) {
        throw Mismatch("episode_step, at a reset", "0 everywhere",
                       std::to_string(step.episode_step.data[n]));
      }
    }
  }

  Spec spec_;
  int64_t N_, rows_;
  Dict step_;     // observations, then reward ... last_action
  Dict outputs_;  // the network's, in its order; empty before its first answer
};

}  // namespace torchbeast
