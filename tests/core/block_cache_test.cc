// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "block_cache.h"

#include "array.h"
#include "testing.h"

namespace torchbeast {
namespace {

constexpr size_t kSize = BlockCache::kMinBytes;

TEST_CASE("block cache: a freed block is used again for an array of its size") {
  BlockCache cache(10 * kSize);
  void* one = cache.Allocate(kSize);
  void* two = cache.Allocate(kSize);
  CHECK(one != two);
  cache.Free(one, kSize);
  void* larger = cache.Allocate(kSize + 1);
  CHECK(larger != one);
  CHECK(cache.Allocate(kSize) == one);
  void* another = cache.Allocate(kSize);
  CHECK(another != one);
  for (void* block : {one, two, another}) cache.Free(block, kSize);
  cache.Free(larger, kSize + 1);
}

TEST_CASE("block cache: it keeps no more bytes than its limit") {
  BlockCache cache(2 * kSize);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(cache.Allocate(kSize));
  for (void* block : blocks) cache.Free(block, kSize);
  CHECK(cache.cached_bytes() == 2 * kSize);
  void* block = cache.Allocate(kSize);
  CHECK(cache.cached_bytes() == kSize);
  cache.Free(block, kSize);
  block = cache.Allocate(2 * kSize);
  cache.Free(block, 2 * kSize);
  CHECK(cache.cached_bytes() == 2 * kSize);
}

TEST_CASE("block cache: small blocks are left to malloc") {
  BlockCache cache(10 * kSize);
  cache.Free(cache.Allocate(kSize - 1), kSize - 1);
  cache.Free(cache.Allocate(0), 0);
  CHECK(cache.cached_bytes() == 0);
}

TEST_CASE("block cache: an array's block is freed with its last owner, and not before") {
  const int64_t size = static_cast<int64_t>(kSize) + 12'345;  // no other array has this size
  const size_t before = BlockCache::Shared().cached_bytes();
  Array array = Array::Empty(kUInt8, {1, size});
  {
    const Array row = array.Row(0);
    array = Array();
    CHECK(BlockCache::Shared().cached_bytes() == before);
  }
  CHECK(BlockCache::Shared().cached_bytes() == before + (BlockCache::kSharedLimit > 0 ? size : 0));
}

TEST_CASE("block cache: threads share it") {
  BlockCache cache(3 * kSize);
  Threads threads;
  for (int i = 0; i < 4; ++i) {
    threads.Start([&cache, i] {
      for (int j = 0; j < 300; ++j) {
        auto* block = static_cast<int*>(cache.Allocate(kSize));
        *block = i;
        std::this_thread::yield();
        Require(*block == i, "two have the same block");
        cache.Free(block, kSize);
      }
    });
  }
  threads.Join();
  CHECK(cache.cached_bytes() <= 3 * kSize);
}

}  // namespace
}  // namespace torchbeast
