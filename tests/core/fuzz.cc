// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// libFuzzer's door to the decoder; `make fuzz` builds and runs it.
#include <cstdio>
#include <cstdlib>

#include "conversation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchbeast::Heard heard;
  try {
    torchbeast::Hear(torchbeast::Messages({reinterpret_cast<const char*>(data), size}), &heard);
  } catch (const torchbeast::StreamError&) {
  }
  if (heard.memory_over > 1 << 16) {
    std::fprintf(stderr, "decoding took twice the message and %ld bytes\n",
                 static_cast<long>(heard.memory_over));
    std::abort();
  }
  return 0;
}
