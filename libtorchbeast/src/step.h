// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// A server's message Step (rpcenv.proto), and the table of its fields that rows have too.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>

#include "array.h"

namespace torchbeast {

template <class T>
struct Span {
  const T* data = nullptr;
  int64_t size = 0;
};

// A Step as it came. Nothing is checked yet: Rollout::WriteStep does that.
struct StepView {
  std::string_view observations;
  Span<float> reward;
  Span<bool> done, terminated, truncated, episode_over;
  Span<int32_t> episode_step;
  Span<float> episode_return;
  double environment_seconds = 0;  // as the server measured it, so it may be any number
};

template <class T>
struct StepField {
  const char* name;          // the key in a rollout
  int number;                // the field's number in rpcenv.proto
  Span<T> StepView::* span;  // one value for each environment
  DType dtype;
};

// The fields of a Step that are arrays [T+1, N] in a rollout, in the order of the rollout's keys.
// Decoding, checking and copying Steps follow this table.
inline constexpr std::tuple kStepFields{
    StepField<float>{"reward", 2, &StepView::reward, kFloat32},
    StepField<bool>{"done", 3, &StepView::done, kBool},
    StepField<bool>{"terminated", 4, &StepView::terminated, kBool},
    StepField<bool>{"truncated", 5, &StepView::truncated, kBool},
    StepField<bool>{"episode_over", 6, &StepView::episode_over, kBool},
    StepField<int32_t>{"episode_step", 7, &StepView::episode_step, kInt32},
    StepField<float>{"episode_return", 8, &StepView::episode_return, kFloat32},
};

// Calls f(field) for each StepField of the table.
template <class F>
void ForEachStepField(F f) {
  std::apply([&f](const auto&... fields) { (f(fields), ...); }, kStepFields);
}

}  // namespace torchbeast
