// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.h"
#include "spec.h"
#include "step.h"
#include "transport.h"

namespace torchbeast {

// A rollout that is being made: T+1 rows of N environments, as a dict of arrays [T+1, N, ...].
// One thread writes Steps of a server and outputs of the network into its rows.
//
// A Step is checked as a whole before anything of it is copied. One that does not fit the Spec is
// refused with a StreamError that says what was expected and what was seen.
class Rollout {
 public:
  Rollout(const Spec& spec, int64_t num_envs, int64_t unroll_length)
      : spec_(spec), N_(num_envs), rows_(unroll_length + 1) {
    for (const Leaf& leaf : spec.observations) {
      Shape shape = {rows_, N_};
      shape.insert(shape.end(), leaf.shape.begin(), leaf.shape.end());
      step_.emplace_back(leaf.name, Array::Empty(leaf.dtype, shape));
    }
    ForEachStepField([this](const auto& field) {
      step_.emplace_back(field.name, Array::Empty(field.dtype, {rows_, N_}));
    });
    Shape shape = {rows_, N_};
    for (int64_t size : spec.action_shape()) shape.push_back(size);
    step_.emplace_back("last_action", Array::Empty(spec.action_dtype(), shape));
  }

  // Writes the Step that answers `actions` into row t. `actions` are as Spec::MakeActions makes
  // them; in row 0 of a stream, which is a reset, they have no effect. Older frames of stacks are
  // copied from row t - 1.
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
    ForEachStepField([&](const auto& field) {
      const auto& span = step.*field.span;
      std::memcpy(step_[i++].second.Row(t).data(), span.data, span.size * sizeof(*span.data));
    });
    WriteLastAction(step, actions, step_[i].second.Row(t));
  }

  // Returns what WriteStep wrote into row t, which is what the network takes: arrays [1, N, ...] in
  // this rollout's memory.
  Dict StepAt(int64_t t) const {
    Dict row;
    for (const auto& [name, array] : step_) row.emplace_back(name, array.Row(t));
    return row;
  }

  // Writes the network's outputs, arrays [1, N, ...], into row t. Throws std::invalid_argument if
  // names, dtypes or shapes differ from the first outputs', or if a name is one of the
  // environment's.
  void WriteOutputs(int64_t t, const Dict& outputs) {
    if (outputs_.empty()) AddOutputs(outputs);
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

  // Returns the next rollout. Its row 0 is a copy of this one's last row.
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

  // Returns all arrays, with the state that the network was given at row 0 as core_state/0, 1, ...
  Dict Finish(const Arrays& initial_core_state) const {
    Dict rollout = step_;
    rollout.insert(rollout.end(), outputs_.begin(), outputs_.end());
    for (size_t i = 0; i < initial_core_state.size(); ++i) {
      rollout.emplace_back(kCoreStatePrefix + std::to_string(i), initial_core_state[i]);
    }
    return rollout;
  }

 private:
  static StreamError Mismatch(const std::string& what, const std::string& expected,
                              const std::string& seen) {
    return StreamError("INVALID_ARGUMENT",
                       "a Step's " + what + ": expected " + expected + ", seen " + seen);
  }

  // Writes `frames` [N, ...], the newest ones of a stack, into row t, behind the older frames.
  // These are all but the oldest of the row before, or zeros where a game begins. (rpcenv.proto,
  // Leaf, says why that is not where an episode begins.)
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

  // The action is 0 where an episode begins.
  void WriteLastAction(const StepView& step, const Array& actions, const Array& row) const {
    const int64_t size = row.column_bytes();
    for (int64_t n = 0; n < N_; ++n) {
      uint8_t* column = row.data() + n * size;
      if (step.done.data[n]) {
        std::memset(column, 0, size);
      } else {
        std::memcpy(column, actions.data() + n * size, size);
      }
    }
  }

  // Makes room for all rows of the network's outputs, of which `outputs` are one row.
  void AddOutputs(const Dict& outputs) {
    for (const auto& [name, array] : outputs) {
      if (Find(step_, name) != nullptr || name.rfind(kCoreStatePrefix, 0) == 0) {
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

  void Check(const StepView& step) const {
    const int64_t bytes = N_ * spec_.wire_bytes();
    const int64_t seen = step.observations.size();
    if (seen != bytes) {
      throw Mismatch("observations", std::to_string(bytes) + " bytes", std::to_string(seen));
    }
    ForEachStepField([&](const auto& field) {
      const int64_t size = (step.*field.span).size;
      if (size != N_) {
        throw Mismatch(field.name, std::to_string(N_) + " values", std::to_string(size));
      }
      CheckFinite(field.name, step.*field.span);
    });
    CheckObservations(step.observations);
  }

  template <class T>
  static void CheckFinite(const char* name, const Span<T>& values) {
    if constexpr (std::is_floating_point_v<T>) {
      for (int64_t i = 0; i < values.size; ++i) {
        if (!std::isfinite(values.data[i])) {
          throw Mismatch(name, "finite numbers", std::to_string(values.data[i]));
        }
      }
    }
  }

  // A byte of a bool must be 0 or 1, because reading any other as a bool is undefined behaviour. A
  // number must be finite, because another one would end the learner and not only this stream. But
  // a game's number, which reaches neither network nor loss, is NaN until it is told.
  void CheckObservations(std::string_view observations) const {
    for (const Leaf& leaf : spec_.observations) {
      const int64_t bytes = N_ * leaf.wire_bytes();
      const bool of_game = leaf.name.rfind("game/", 0) == 0;
      if (!of_game && !AllFinite(leaf.dtype, observations.substr(0, bytes))) {
        throw Mismatch(leaf.name, "finite numbers of float32", "others");
      }
      if (leaf.name == "discount" && bytes == N_ * static_cast<int64_t>(sizeof(float))) {
        std::vector<float> values(N_);
        std::memcpy(values.data(), observations.data(), bytes);
        for (float x : values) {
          if (std::abs(x) > 1) throw Mismatch(leaf.name, "-1 to 1", std::to_string(x));
        }
      }
      if (leaf.dtype == kBool) {
        uint8_t bits = 0;
        for (int64_t i = 0; i < bytes; ++i) bits |= static_cast<uint8_t>(observations[i]);
        if (bits > 1) throw Mismatch(leaf.name + " (bool)", "bytes 0 and 1", "others");
      }
      observations.remove_prefix(bytes);
    }
  }

  // In infinities and NaNs, all bits of the exponent are ones. A float64 must also be finite in
  // float32, in which networks compute.
  static bool AllFinite(DType dtype, std::string_view memory) {
    if (dtype.kind == Kind::kBFloat) return NoneHasAll<uint16_t>(0x7f80, memory);
    if (dtype.kind != Kind::kFloat) return true;
    if (dtype.bits == 16) return NoneHasAll<uint16_t>(0x7c00, memory);
    if (dtype.bits == 32) return NoneHasAll<uint32_t>(0x7f800000, memory);
    bool fit = true;
    for (size_t i = 0; i + sizeof(double) <= memory.size(); i += sizeof(double)) {
      double x;
      std::memcpy(&x, memory.data() + i, sizeof(x));
      fit &= std::abs(x) <= std::numeric_limits<float>::max();
    }
    return fit;
  }

  // Whether none of the numbers in `memory` has all bits of `mask`.
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

  // Checks a Step that answers a reset. Stacks must be at the beginning of a game there, because
  // there is no row before it that has their older frames.
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
  Dict step_;     // observations, then the fields of kStepFields, then last_action
  Dict outputs_;  // of the network, in its order; empty before the first row of them
};

}  // namespace torchbeast
