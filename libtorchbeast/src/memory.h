// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Memory of large arrays, to be used again. Fresh memory costs a page fault for every 4 KiB; the
// rollouts and batches of a run are always of the same few sizes.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "mutex.h"

namespace torchbeast {

// Blocks that were given back, by size, together at most `limit` bytes. Any thread may call
// anything. Outlives the program's other statics: arrays may be freed at any time.
class Memory {
 public:
  static constexpr size_t kLeast = size_t{1} << 16;  // smaller ones malloc keeps itself
#ifdef __SANITIZE_ADDRESS__                          // which shall see where each ends
  static constexpr size_t kLimit = 0;
#else
  static constexpr size_t kLimit = size_t{1} << 29;
#endif

  explicit Memory(size_t limit) : limit_(limit) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (const auto& [size, blocks] : free_) {
      for (void* block : blocks) ::operator delete(block);
    }
  }

  static Memory& Shared() {
    static auto* const memory = new Memory(kLimit);
    return *memory;
  }

  void* Take(size_t size) EXCLUDES(mutex_) {
    if (size >= kLeast) {
      Lock lock(mutex_);
      const auto found = free_.find(size);
      if (found != free_.end() && !found->second.empty()) {
        void* block = found->second.back();
        found->second.pop_back();
        bytes_ -= size;
        return block;
      }
    }
    return ::operator new(size);
  }

  void Give(void* block, size_t size) EXCLUDES(mutex_) {
    if (size >= kLeast) {
      Lock lock(mutex_);
      if (bytes_ + size <= limit_) {
        free_[size].push_back(block);
        bytes_ += size;
        return;
      }
    }
    ::operator delete(block);
  }

  // Bytes that wait to be used again.
  size_t kept() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    return bytes_;
  }

 private:
  const size_t limit_;
  mutable Mutex mutex_;
  std::map<size_t, std::vector<void*>> free_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torchbeast
