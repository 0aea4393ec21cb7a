// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Encodes the messages that servers get, with the same bytes as protobuf. This file depends neither
// on gRPC nor on protobuf.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "array.h"

namespace torchbeast {

inline void AppendVarint(uint64_t value, std::string* bytes) {
  for (; value >= 0x80; value >>= 7) bytes->push_back(static_cast<char>(value | 0x80));
  bytes->push_back(static_cast<char>(value));
}

// Encodes an Action of rpcenv.proto. `actions` are int64, from 0 to 2^31 - 1, or float32.
inline void EncodeAction(const Array& actions, std::string* message) {
  constexpr char kActions = 1 << 3 | 2, kReals = 2 << 3 | 2;  // tags of fields 1 and 2, packed
  const int64_t count = NumElements(actions.shape());
  message->clear();
  if (actions.dtype() == kFloat32) {
    const size_t size = static_cast<size_t>(count) * sizeof(float);
    message->push_back(kReals);
    AppendVarint(size, message);
    message->append(reinterpret_cast<const char*>(actions.as<float>()), size);
    return;
  }
  size_t size = 0;
  const int64_t* values = actions.as<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t rest = values[i]; rest >= 0x80; rest >>= 7) ++size;
    ++size;
  }
  message->push_back(kActions);
  AppendVarint(size, message);
  for (int64_t i = 0; i < count; ++i) AppendVarint(static_cast<uint64_t>(values[i]), message);
}

}  // namespace torchbeast
