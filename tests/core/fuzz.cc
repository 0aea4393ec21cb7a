// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// The entry point of libFuzzer, which sends its inputs to the decoder. `make fuzz` runs it.
#include <cstdio>
#include <cstdlib>

#include "replay.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchbeast::ReplayResult result;
  try {
    torchbeast::Replay(torchbeast::Messages({reinterpret_cast<const char*>(data), size}), &result);
  } catch (const torchbeast::StreamError&) {
  }
  if (result.excess_bytes > 1 << 16) {
    std::fprintf(stderr, "decoding took twice the message and %ld bytes\n",
                 static_cast<long>(result.excess_bytes));
    std::abort();
  }
  return 0;
}
