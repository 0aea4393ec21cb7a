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

}  // namespace torchbeast
