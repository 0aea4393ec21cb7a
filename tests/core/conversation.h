// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What a server may say, as the files of tests/core/corpus have it (tests/corpus.py made them),
// heard as the pool hears it; and how much memory that takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "decoder.h"
#include "rollout.h"

// Of every sanitizer; g++ has no header for them.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void*);

namespace torchbeast {

using Message = std::vector<char>;  // in memory of its own, of whose end the sanitizers know

// A Spec and then Steps, each behind its length in two bytes, the lower one first. Of the last one
// there may be less than its length says.
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

// The most memory that this thread took while one of these lives, beyond what it had. One at a
// time.
class Peak {
 public:
  Peak() {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(OnMalloc, OnFree);
    static_cast<void>(installed);
    now_ = most_ = 0;
    counting_ = true;
  }
  ~Peak() { counting_ = false; }

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

struct Heard {
  Spec spec;
  int steps = 0;            // that were taken
  int64_t memory_over = 0;  // of twice the message, in bytes, where most
};

// Hears all of it, as ActorPool does, into rollouts of three rows. `heard` is also of use where a
// StreamError ends it.
inline void Hear(const std::vector<Message>& messages, Heard* heard) {
  const auto decode = [&](const Message& message, auto decoder) {
    const Peak peak;
    const int64_t size = static_cast<int64_t>(message.size());
    const auto note = [&] {
      heard->memory_over = std::max(heard->memory_over, peak.bytes() - size);
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
  const Spec spec = heard->spec = decode(messages.at(0), DecodeSpec);
  // The pool asks for no more than its first Spec had, and the tests have not the memory.
  if (spec.num_envs > 64 || spec.observation_bytes() > 1 << 16 ||
      NumElements(spec.action_shape()) > 1 << 10) {
    return;
  }
  constexpr int64_t T = 2;
  const Array actions = spec.MakeActions(spec.num_envs);
  if (actions.bytes() > 0) std::memset(actions.data(), 0, actions.bytes());
  StepDecoder decoder;
  Rollout rollout(spec, spec.num_envs, T);
  for (size_t i = 1; i < messages.size(); ++i, ++heard->steps) {
    const int64_t t = i == 1 ? 0 : 1 + heard->steps % T;
    rollout.WriteStep(t, decode(messages[i], [&](auto m) { return decoder.Decode(m); }), actions);
    if (t == T) rollout = rollout.Next();
  }
}

}  // namespace torchbeast
