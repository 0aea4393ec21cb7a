// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "memory.h"

#include "array.h"
#include "testing.h"

namespace torchbeast {
namespace {

constexpr size_t kSize = Memory::kLeast;

TEST_CASE("memory: a block that was given back is used again, for its size") {
  Memory memory(10 * kSize);
  void* one = memory.Take(kSize);
  void* two = memory.Take(kSize);
  CHECK(one != two);
  memory.Give(one, kSize);
  void* larger = memory.Take(kSize + 1);
  CHECK(larger != one);
  CHECK(memory.Take(kSize) == one);
  void* another = memory.Take(kSize);
  CHECK(another != one);
  for (void* block : {one, two, another}) memory.Give(block, kSize);
  memory.Give(larger, kSize + 1);
}

TEST_CASE("memory: no more is kept than the limit") {
  Memory memory(2 * kSize);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(memory.Take(kSize));
  for (void* block : blocks) memory.Give(block, kSize);
  CHECK(memory.kept() == 2 * kSize);
  void* block = memory.Take(kSize);
  CHECK(memory.kept() == kSize);
  memory.Give(block, kSize);
  block = memory.Take(2 * kSize);
  memory.Give(block, 2 * kSize);
  CHECK(memory.kept() == 2 * kSize);
}

TEST_CASE("memory: small blocks are left to malloc") {
  Memory memory(10 * kSize);
  memory.Give(memory.Take(kSize - 1), kSize - 1);
  memory.Give(memory.Take(0), 0);
  CHECK(memory.kept() == 0);
}

TEST_CASE("memory: an array's goes back with its last owner, and not before") {
  const int64_t size = static_cast<int64_t>(kSize) + 12'345;  // nobody else's
  const size_t before = Memory::Shared().kept();
  Array array = Array::Empty(kUInt8, {1, size});
  {
    const Array row = array.Row(0);
    array = Array();
    CHECK(Memory::Shared().kept() == before);
  }
  CHECK(Memory::Shared().kept() == before + (Memory::kLimit > 0 ? size : 0));
}

TEST_CASE("memory: threads share it") {
  Memory memory(3 * kSize);
  Threads threads;
  for (int i = 0; i < 4; ++i) {
    threads.Start([&memory, i] {
      for (int j = 0; j < 300; ++j) {
        auto* block = static_cast<int*>(memory.Take(kSize));
        *block = i;
        std::this_thread::yield();
        Require(*block == i, "two have the same block");
        memory.Give(block, kSize);
      }
    });
  }
  threads.Join();
  CHECK(memory.kept() <= 3 * kSize);
}

}  // namespace
}  // namespace torchbeast
