// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Replays what a server may send to the decoder, and measures how much memory the decoder takes.
// The messages come from tests/core/corpus, whose files tests/corpus.py made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "decoder.h"
#include "rollout.h"

// Every sanitizer has these, but g++ has no header for them.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void*);

namespace torchbeast {

// A message has memory of its own, so that sanitizers see reads beyond its end.
using Message = std::vector<char>;

// Splits a file into messages: a Spec, and then Steps. Before each message stands its length, in
// two bytes, the lower one first. The last message may be shorter than its length says.
inline std::vector<Message> Messages(std::string_view file) {
  std::vector<Message> messages;
  while (file.size() >= 2) {
    const size_t size = static_cast<uint8_t>(file[0]) + 256 * static_cast<uint8_t>(file[1]);
    const std::string_view message = file.substr(2, size);
    messages.emplace_back(message.begin(), message.end());
    file.remove_prefix(2 + message.size());
  }
  if (messages.empty()) messages.emplace_back();
  return messages;
}

// Measures the most memory that this thread takes while it lives, beyond what the thread had
// before. There may be one at a time.
class PeakMemory {
 public:
  PeakMemory() {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(OnMalloc, OnFree);
    static_cast<void>(installed);
    now_ = most_ = 0;
    counting_ = true;
  }
  ~PeakMemory() { counting_ = false; }

  int64_t bytes() const { return most_; }

 private:
  static void OnMalloc(const volatile void*, size_t size) {
    if (counting_) most_ = std::max(most_, now_ += static_cast<int64_t>(size));
  }
  static void OnFree(const volatile void* memory) {
    if (!counting_ || memory == nullptr) return;
    now_ -= static_cast<int64_t>(__sanitizer_get_allocated_size(memory));
  }

  static inline thread_local bool counting_ = false;
  static inline thread_local int64_t now_ = 0, most_ = 0;
};

struct ReplayResult {
  Spec spec;
  int steps = 0;             // the number of Steps that were accepted
  int64_t excess_bytes = 0;  // the most memory that decoding a message took, beyond twice its size
};

// Writes all messages into rollouts of three rows, as ActorPool does. `result` is also valid if a
// StreamError ends the replay.
inline void Replay(const std::vector<Message>& messages, ReplayResult* result) {
  const auto decode = [&](const Message& message, auto decoder) {
    const PeakMemory peak;
    const int64_t size = static_cast<int64_t>(message.size());
    const auto note = [&] {
      result->excess_bytes = std::max(result->excess_bytes, peak.bytes() - size);
    };
    try {
      auto decoded = decoder(std::string_view(message.data(), message.size()));
      note();
      return decoded;
    } catch (const StreamError&) {
      note();
      throw;
    }
  };
  const Spec spec = result->spec = decode(messages.at(0), DecodeSpec);
  // The pool accepts no Spec that is larger than its own, and the tests lack the memory for large
  // ones.
  if (spec.num_envs > 64 || spec.observation_bytes() > 1 << 16 ||
      NumElements(spec.action_shape()) > 1 << 10) {
    return;
  }
  constexpr int64_t T = 2;
  const Array actions = spec.MakeActions(spec.num_envs);
  if (actions.bytes() > 0) std::memset(actions.data(), 0, actions.bytes());
  StepDecoder decoder;
  Rollout rollout(spec, spec.num_envs, T);
  for (size_t i = 1; i < messages.size(); ++i, ++result->steps) {
    const int64_t t = i == 1 ? 0 : 1 + result->steps % T;
    rollout.WriteStep(t, decode(messages[i], [&](auto m) { return decoder.Decode(m); }), actions);
    if (t == T) rollout = rollout.Next();
  }
}

}  // namespace torchbeast
