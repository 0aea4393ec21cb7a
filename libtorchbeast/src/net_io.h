// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include "array.h"

namespace torchbeast {

// What the network takes, or what it gives: named arrays [1, columns, ...] and the recurrent state,
// which is arrays [layers, columns, ...].
struct NetIO {
  Dict arrays;
  Arrays core_state;
};

// Returns the arrays and the state without memory: only their names, dtypes and shapes.
inline Dict Layout(const NetIO& io) {
  Dict layout;
  for (const auto& [name, array] : io.arrays) layout.emplace_back(name, array.WithoutMemory());
  for (const Array& state : io.core_state) {
    layout.emplace_back("core_state", state.WithoutMemory());
  }
  return layout;
}

}  // namespace torchbeast
