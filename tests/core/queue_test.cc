// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>

#include "batching_queue.h"
#include "testing.h"

namespace torchbeast {
namespace {

constexpr int64_t kRows = 3;

// Returns an array [T, n] whose columns are named `first`, first + 1, ..., and an array with more
// dimensions.
Dict Item(int64_t first, int64_t n) {
  Dict item = {{"name", Array::Empty(kInt64, {kRows, n})},
               {"more", Array::Empty(kUInt8, {1, n, 2})}};
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t t = 0; t < kRows; ++t)
      item[0].second.as<int64_t>()[t * n + i] = first + i + (t << 40);
    for (int64_t j = 0; j < 2; ++j) item[1].second.as<uint8_t>()[2 * i + j] = (first + i) * 2 + j;
  }
  return item;
}

// Returns the names of a batch's columns. Checks that all rows and arrays have the same names.
std::vector<int64_t> NamesOf(const Dict& batch, int64_t n) {
  Require(batch.size() == 2 && batch[0].first == "name" && batch[1].first == "more", "names");
  Require(batch[0].second.shape() == Shape{kRows, n}, batch[0].second.describe());
  Require(batch[1].second.shape() == Shape{1, n, 2}, batch[1].second.describe());
  const auto* name = batch[0].second.as<int64_t>();
  const auto* more = batch[1].second.as<uint8_t>();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t t = 0; t < kRows; ++t) Require(name[t * n + i] == name[i] + (t << 40), "a row");
    for (int64_t j = 0; j < 2; ++j) {
      Require(more[2 * i + j] == static_cast<uint8_t>(name[i] * 2 + j), "the other array");
    }
  }
  return {name, name + n};
}

TEST_CASE("queue: sizes are checked") {
  CHECK(ErrorOf<std::invalid_argument>([] { BatchingQueue(0, 4); }) ==
        "batch_size: expected at least 1, seen 0");
  CHECK(ErrorOf<std::invalid_argument>([] { BatchingQueue(4, 3); }) ==
        "capacity: expected at least batch_size = 4 columns, seen 3");
}

TEST_CASE("queue: items are checked against the first") {
  BatchingQueue queue(2, 4);
  CHECK(ErrorOf<std::invalid_argument>([&] { queue.Enqueue({}); }) ==
        "expected at least one array, seen none");
  queue.Enqueue(Item(0, 1));
  Dict item = Item(1, 2);
  item[0].second = Array::Empty(kInt64, {kRows + 1, 2});
  CHECK(ErrorOf<std::invalid_argument>([&] { queue.Enqueue(item); }) ==
        "name: expected int64[3, 1] with any number of columns, seen int64[4, 2]");
  item = Item(1, 2);
  item[1].second = Array::Empty(kUInt8, {1, 3, 2});
  CHECK(ErrorOf<std::invalid_argument>([&] { queue.Enqueue(item); }) ==
        "more: expected 2 columns, seen uint8[1, 3, 2]");
  CHECK(queue.size() == 1);
  queue.Enqueue(Item(1, 1));
  CHECK(NamesOf(queue.Dequeue(), 2) == std::vector<int64_t>{0, 1});
}

TEST_CASE("queue: a batch is joined in lent memory, also one that is exactly one item") {
  BatchingQueue queue(3, 9);
  const Dict into = Item(100, 3);
  CHECK(ErrorOf<std::invalid_argument>([&] { queue.Dequeue(into); }) ==
        "expected the arrays ; seen name, more");  // before any item
  queue.Enqueue(Item(0, 3));
  CHECK(ErrorOf<std::invalid_argument>([&] { queue.Dequeue(Item(0, 2)); }) ==
        "expected 3 columns, as many as a batch has; seen 2");
  CHECK(queue.size() == 3);
  queue.Enqueue(Item(3, 1));
  queue.Enqueue(Item(4, 2));
  for (int64_t first : {0, 3}) {
    const Dict batch = queue.Dequeue(into);
    CHECK(NamesOf(into, 3) == std::vector<int64_t>{first, first + 1, first + 2});
    for (size_t i = 0; i < 2; ++i) CHECK(batch[i].second.data() == into[i].second.data());
  }
  queue.Close();
  CHECK_THROWS_AS(queue.Dequeue(into), Closed);
  CHECK(into[0].second.owner().use_count() == 1);  // the queue has kept none of it
}

TEST_CASE("queue: a batch that is exactly one item is that item") {
  BatchingQueue queue(3, 9);
  const Dict item = Item(5, 3);
  queue.Enqueue(item);
  CHECK(queue.Dequeue()[0].second.data() == item[0].second.data());
  queue.Enqueue(Item(0, 4));
  const Dict other = Item(4, 2);
  queue.Enqueue(other);
  CHECK(NamesOf(queue.Dequeue(), 3) == std::vector<int64_t>{0, 1, 2});
  CHECK(NamesOf(queue.Dequeue(), 3) == std::vector<int64_t>{3, 4, 5});
}

TEST_CASE("queue: in one thread it is a deque of columns") {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int64_t batch_size = 1 + random() % 7, capacity = batch_size + random() % 9;
    BatchingQueue queue(batch_size, capacity);
    std::deque<int64_t> model;
    int64_t next = 0;
    for (int i = 0; i < 200; ++i) {
      const int64_t inside = model.size();
      CHECK(queue.size() == inside);
      if (inside >= batch_size && (inside >= capacity || random() % 2)) {
        const std::vector<int64_t> expected(model.begin(), model.begin() + batch_size);
        CHECK(NamesOf(queue.Dequeue(), batch_size) == expected);
        model.erase(model.begin(), model.begin() + batch_size);
      } else {
        const int64_t n = 1 + random() % 10;
        queue.Enqueue(Item(next, n));
        for (int64_t j = 0; j < n; ++j) model.push_back(next++);
      }
    }
  }
}

struct Sizes {
  int producers, consumers;
  int64_t batch_size, capacity;
};

Sizes RandomSizes(std::mt19937& random) {
  Sizes sizes;
  sizes.producers = 1 + random() % 4;
  sizes.consumers = 1 + random() % 3;
  sizes.batch_size = 1 + random() % 6;
  sizes.capacity = sizes.batch_size + random() % 6;
  return sizes;
}

constexpr int64_t kProducer = 1'000'000;  // producer p's columns are named from p * kProducer on

// Throws unless each producer's columns come in order, and without gaps if `all`.
void CheckOrder(const std::vector<int64_t>& names, bool all) {
  std::map<int64_t, int64_t> next;
  for (int64_t name : names) {
    int64_t& expected = next[name / kProducer];
    Require(all ? name % kProducer == expected : name % kProducer >= expected, "order");
    expected = name % kProducer + 1;
  }
}

TEST_CASE("queue: among threads nothing is lost or doubled, and each producer's order is kept") {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Sizes sizes = RandomSizes(random);
    BatchingQueue queue(sizes.batch_size, sizes.capacity);
    constexpr int64_t kColumns = 240, kMostInItem = 5;  // whole batches, whatever their size
    const int64_t batches = sizes.producers * kColumns / sizes.batch_size;
    std::atomic<int64_t> taken{0};
    std::vector<std::vector<int64_t>> seen(sizes.consumers);
    Threads threads;
    for (int p = 0; p < sizes.producers; ++p) {
      threads.Start([&queue, p, generator = std::mt19937(random())]() mutable {
        for (int64_t i = 0; i < kColumns;) {
          const int64_t n = std::min<int64_t>(1 + generator() % kMostInItem, kColumns - i);
          queue.Enqueue(Item(p * kProducer + i, n));
          i += n;
        }
      });
    }
    for (int c = 0; c < sizes.consumers; ++c) {
      threads.Start([&, c] {
        while (taken++ < batches) {
          const std::vector<int64_t> names = NamesOf(queue.Dequeue(), sizes.batch_size);
          seen[c].insert(seen[c].end(), names.begin(), names.end());
          Require(queue.size() < sizes.capacity + kMostInItem, "more inside than capacity allows");
        }
      });
    }
    threads.Join();
    std::vector<int64_t> all;
    for (const auto& names : seen) {
      CheckOrder(names, /*all=*/sizes.consumers == 1);
      all.insert(all.end(), names.begin(), names.end());
    }
    CHECK(queue.size() == 0);
    std::sort(all.begin(), all.end());
    std::vector<int64_t> expected;
    for (int p = 0; p < sizes.producers; ++p) {
      for (int64_t i = 0; i < kColumns; ++i) expected.push_back(p * kProducer + i);
    }
    CHECK(all == expected);
  }
}

TEST_CASE("queue: when it is closed at any moment, all threads end, and all batches are whole") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Sizes sizes = RandomSizes(random);
    BatchingQueue queue(sizes.batch_size, sizes.capacity);
    std::atomic<int64_t> columns{0};
    std::vector<std::vector<int64_t>> seen(sizes.consumers);
    Threads threads;
    for (int p = 0; p < sizes.producers; ++p) {
      threads.Start([&queue, p, generator = std::mt19937(random())]() mutable {
        int64_t i = 0;
        const std::string error = ErrorOf<Closed>([&] {
          while (true) {
            const int64_t n = 1 + generator() % 5;
            queue.Enqueue(Item(p * kProducer + i, n));
            i += n;
          }
        });
        Require(error == "the queue is closed", error);
      });
    }
    for (int c = 0; c < sizes.consumers; ++c) {
      threads.Start([&, c] {
        ErrorOf<Closed>([&] {
          while (true) {
            for (int64_t name : NamesOf(queue.Dequeue(), sizes.batch_size)) seen[c].push_back(name);
            columns += sizes.batch_size;
          }
        });
      });
    }
    const int64_t enough = random() % 200;
    Await([&] { return columns >= enough; });
    Threads closing;
    for (int i = 0; i < 2; ++i) closing.Start([&queue] { queue.Close(); });
    closing.Join();
    threads.Join();
    std::vector<int64_t> all;
    for (const auto& names : seen) {
      CheckOrder(names, /*all=*/sizes.consumers == 1);
      all.insert(all.end(), names.begin(), names.end());
    }
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    CHECK(queue.size() == 0);
  }
}

TEST_CASE("queue: Close makes calls that wait, and later calls, throw Closed") {
  BatchingQueue full(2, 2), empty(2, 2);
  full.Enqueue(Item(0, 2));
  Threads threads;
  for (int i = 0; i < 3; ++i) {
    threads.Start([&] { ErrorOf<Closed>([&] { full.Enqueue(Item(2, 1)); }); });
    threads.Start([&] { ErrorOf<Closed>([&] { empty.Dequeue(); }); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // most wait by now, but none must
  for (BatchingQueue* queue : {&full, &empty}) {
    queue->Close();
    queue->Close();
  }
  threads.Join();
  CHECK(full.size() == 0);
  CHECK_THROWS_AS(full.Dequeue(), Closed);
  CHECK_THROWS_AS(full.Enqueue({{"else", Array::Empty(kBool, {1, 1})}}), Closed);
}

TEST_CASE("queue: Close drops what is inside") {
  BatchingQueue queue(2, 2);
  const auto owner = std::make_shared<int64_t>();
  queue.Enqueue({{"a", Array(kInt64, {1, 1}, owner, owner.get())}});
  CHECK(owner.use_count() == 2);
  queue.Close();
  CHECK(owner.use_count() == 1);
}

TEST_CASE("queue: an item is taken whole while fewer than capacity columns wait") {
  BatchingQueue queue(2, 3);
  queue.Enqueue(Item(0, 2));
  queue.Enqueue(Item(2, 5));  // enters, though it exceeds the capacity
  CHECK(queue.size() == 7);
  std::atomic<bool> entered{false};
  Threads threads;
  threads.Start([&] {
    queue.Enqueue(Item(7, 1));
    entered = true;
  });
  for (int64_t size : {5, 3}) {
    CHECK(NamesOf(queue.Dequeue(), 2)[0] == 5 - size);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // gives an error time to show
    CHECK(!entered);
    CHECK(queue.size() == size);
  }
  CHECK(NamesOf(queue.Dequeue(), 2) == std::vector<int64_t>{4, 5});
  threads.Join();
  CHECK(queue.size() == 2);
  CHECK(NamesOf(queue.Dequeue(), 2) == std::vector<int64_t>{6, 7});
}

TEST_CASE("queue: one item that fills many batches wakes as many consumers") {
  BatchingQueue queue(1, 1);
  std::atomic<int64_t> sum{0};
  Threads threads;
  for (int i = 0; i < 4; ++i) {
    threads.Start([&] { sum += NamesOf(queue.Dequeue(), 1)[0]; });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // most wait by now, but none must
  queue.Enqueue(Item(1, 4));
  threads.Join();
  CHECK(sum == 1 + 2 + 3 + 4);
}

}  // namespace
}  // namespace torchbeast
