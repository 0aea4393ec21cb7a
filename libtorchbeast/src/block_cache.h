// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "mutex.h"

namespace torchbeast {

// Allocates memory and keeps large blocks that were freed, so that the next array of the same size
// uses them again. Fresh memory costs a page fault for every 4 KiB, and the rollouts and batches of
// a run always have the same few sizes.
//
// The cache keeps at most `limit` bytes. Any thread may call anything.
class BlockCache {
 public:
  static constexpr size_t kMinBytes = size_t{1} << 16;  // malloc keeps smaller blocks itself
#ifdef __SANITIZE_ADDRESS__  // AddressSanitizer cannot see a use after free in cached blocks.
  static constexpr size_t kSharedLimit = 0;
#else
  static constexpr size_t kSharedLimit = size_t{1} << 29;
#endif

  explicit BlockCache(size_t limit) : limit_(limit) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache() {
    for (const auto& [size, blocks] : blocks_) {
      for (void* block : blocks) ::operator delete(block);
    }
  }

  // The cache of all arrays. It is never destroyed, because arrays may be freed at any time, even
  // when the process ends.
  static BlockCache& Shared() {
    static auto* const cache = new BlockCache(kSharedLimit);
    return *cache;
  }

  void* Allocate(size_t size) EXCLUDES(mutex_) {
    if (size >= kMinBytes) {
      Lock lock(mutex_);
      const auto found = blocks_.find(size);
      if (found != blocks_.end() && !found->second.empty()) {
        void* block = found->second.back();
        found->second.pop_back();
        cached_bytes_ -= size;
        return block;
      }
    }
    return ::operator new(size);
  }

  // `size` is the size that the block was allocated with.
  void Free(void* block, size_t size) EXCLUDES(mutex_) {
    if (size >= kMinBytes) {
      Lock lock(mutex_);
      if (cached_bytes_ + size <= limit_) {
        blocks_[size].push_back(block);
        cached_bytes_ += size;
        return;
      }
    }
    ::operator delete(block);
  }

  size_t cached_bytes() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    return cached_bytes_;
  }

 private:
  const size_t limit_;
  mutable Mutex mutex_;
  std::map<size_t, std::vector<void*>> blocks_ GUARDED_BY(mutex_);  // by their size
  size_t cached_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torchbeast
