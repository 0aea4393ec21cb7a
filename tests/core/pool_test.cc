// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>

#include "pool_harness.h"

namespace torchbeast {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST_CASE("pool: rollouts are exact, whatever the sizes") {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Sizes sizes;
    sizes.unroll_length = 1 + random() % 6;
    sizes.batch_size = 1 + random() % 5;
    sizes.capacity = sizes.batch_size + random() % 4;
    sizes.maximum = 4 + random() % 5;
    sizes.minimum = 1 + random() % 4;
    sizes.answerers = 1 + random() % 3;
    const int actors = 1 + random() % 4;
    PoolHarness harness(actors, sizes, [](int a, int) { return Good(1 + a); });
    Checker(harness).Run(actors, 0, 12);
    CHECK(harness.pool->TakeEvents().empty());
    for (const StreamMonitor::Status& status : harness.pool->status()) {
      CHECK(status.connected);
      CHECK(status.failures == 0);
      CHECK(status.last_error == "");
    }
    for (double seconds : harness.pool->seconds()) CHECK(seconds > 0);
    harness.End();
  }
}

TEST_CASE("pool: a row's latency is from its arrival to its actions being sent, counted once") {
  std::atomic<int64_t> calls{0};
  constexpr milliseconds kSlow{5};
  PoolHarness harness(
      2, Sizes(), [](int, int) { return Good(3); },
      [&](const NetIO& inputs) {
        std::this_thread::sleep_for(kSlow);
        return CountingNet(inputs, &calls);
      });
  Checker(harness).Run(2, 0, 3);
  harness.End();
  const std::vector<int64_t> latencies = harness.pool->latencies();
  CHECK(std::accumulate(latencies.begin(), latencies.end(), int64_t{0}) ==
        harness.transport->writes);
  const auto least = latencies.begin() + ActorTimes::LatencyBin(kSlow);
  CHECK(std::accumulate(latencies.begin(), least, int64_t{0}) == 0);
}

TEST_CASE("pool: outputs that break the contract end it, and TakeEvents throws") {
  struct Bad {
    const char* error;
    std::function<void(NetIO*)> change;
  };
  const std::vector<Bad> bads = {
      {"outputs: expected action int64[1, 2], seen none",
       [](auto* e) { e->arrays.erase(e->arrays.begin()); }},
      {"outputs: expected action int64[1, 2], seen int32[1, 2]",
       [](auto* e) { e->arrays[0].second = Array::Empty(kInt32, {1, 2}); }},
      {"outputs: expected action int64[1, 2], seen int64[1, 2, 1]",
       [](auto* e) { e->arrays[0].second = Array::Empty(kInt64, {1, 2, 1}); }},
      {"outputs: expected actions from 0 to 6, seen 7",
       [](auto* e) { e->arrays[0].second.template as<int64_t>()[1] = 7; }},
      {"outputs: expected actions from 0 to 6, seen -1",
       [](auto* e) { e->arrays[0].second.template as<int64_t>()[0] = -1; }},
      {"outputs: expected actions from 0 to 6, seen 4294967296",
       [](auto* e) { e->arrays[0].second.template as<int64_t>()[0] = int64_t{1} << 32; }},
      {"outputs: expected action, logits, given, call; seen action, logits, given",
       [](auto* e) { e->arrays.pop_back(); }},
      {"core_state: expected (int64[2, 2], float32[1, 2, 2]), as it was before, seen (int64[2, 2])",
       [](auto* e) { e->core_state.pop_back(); }},
      {"core_state: expected (int64[2, 2], float32[1, 2, 2]), as it was before, seen (int64[1, 2], "
       "float32[1, 2, 2])",
       [](auto* e) { e->core_state[0] = Array::Empty(kInt64, {1, 2}); }},
      {"core_state: expected (int64[2, 2], float32[1, 2, 2]), as it was before, seen (int64[2, 2], "
       "int32[1, 2, 2])",
       [](auto* e) { e->core_state[1] = Array::Empty(kInt32, {1, 2, 2}); }},
  };
  for (const Bad& bad : bads) {
    CAPTURE(bad.error);
    std::atomic<int64_t> calls{0}, batches{0};
    Sizes sizes;
    sizes.minimum = sizes.maximum = 2;  // each batch is one actor's
    PoolHarness harness(
        2, sizes, [](int, int) { return Good(2); },
        [&](const NetIO& inputs) {
          std::optional<NetIO> outputs = CountingNet(inputs, &calls);
          if (++batches > 6) bad.change(&*outputs);
          return outputs;
        });
    ErrorOf<Closed>([&] {
      while (true) harness.queue->Dequeue();
    });
    CHECK(ErrorOf<std::runtime_error>([&] { harness.pool->TakeEvents(); }) == bad.error);
    CHECK(ErrorOf<std::runtime_error>([&] { harness.pool->TakeEvents(); }) == bad.error);
    harness.End();
  }
}

TEST_CASE("pool: outputs that differ between actors end it") {
  std::atomic<int64_t> calls{0};
  Sizes sizes;
  sizes.minimum = sizes.maximum = 2;
  PoolHarness harness(
      2, sizes, [](int, int) { return Good(2); },
      [&](const NetIO& inputs) {
        std::optional<NetIO> outputs = CountingNet(inputs, &calls);
        const bool second = Find(inputs.arrays, "count")->as<int64_t>()[0] >= 10'000'000'000;
        if (second) outputs->arrays.pop_back();
        return outputs;
      });
  ErrorOf<Closed>([&] {
    while (true) harness.queue->Dequeue();
  });
  CHECK(Has(ErrorOf<std::runtime_error>([&] { harness.pool->TakeEvents(); }),
            "expected the arrays count, "));
  harness.End();
}

// Closes the pool from two threads at once, and then again, and destroys it.
void CloseNow(PoolHarness* harness) {
  Threads closing;
  for (int i = 0; i < 2; ++i) closing.Start([harness] { harness->pool->Close(); });
  closing.Join();
  CHECK_THROWS_AS(harness->queue->Dequeue(), Closed);
  CHECK_THROWS_AS(harness->batcher->Next(), Closed);
  CHECK(harness->pool->TakeEvents().empty());  // Close is no failure
  harness->End();
  harness->pool.reset();
}

TEST_CASE("pool: Close returns while threads wait in a stream") {
  for (const auto& [place, at] : std::vector<std::pair<Plan::Place, int64_t>>{{Plan::kOpen, 0},
                                                                              {Plan::kRead, 0},
                                                                              {Plan::kRead, 2},
                                                                              {Plan::kWrite, 0},
                                                                              {Plan::kWrite, 2}}) {
    CAPTURE(place);
    CAPTURE(at);
    PoolHarness harness(3, Sizes(), [place = place, at = at](int, int) {
      Plan plan = Good(1);
      plan.hangs = place;
      plan.at = at;
      return plan;
    });
    Await([&] { return harness.transport->hanging == 3; });
    CloseNow(&harness);
  }
}

TEST_CASE("pool: Close returns while threads wait for the network") {
  Sizes sizes;
  sizes.answerers = 0;
  sizes.maximum = 2;
  PoolHarness harness(3, sizes, [](int, int) { return Good(1); });
  Await([&] { return harness.batcher->size() >= 2; });
  const auto handed_out = harness.batcher->Next();
  Await([&] { return harness.batcher->size() + handed_out->columns() == 3; });
  CloseNow(&harness);
}

TEST_CASE("pool: Close returns while threads wait at the queue") {
  Sizes sizes;
  sizes.unroll_length = 1;
  sizes.batch_size = sizes.capacity = 1;
  PoolHarness harness(2, sizes, [](int, int) { return Good(1); });
  // One rollout is in the queue. Its actor has written 2 + 1 actions, the other one 2, and both
  // wait.
  Await([&] { return harness.transport->writes == 5; });
  CHECK(harness.queue->size() == 1);
  CloseNow(&harness);
}

TEST_CASE("pool: Close returns while threads back off") {
  PoolHarness harness(2, Sizes(), [](int, int) {
    Plan plan;
    plan.fails = Plan::kOpen;
    return plan;
  });
  harness.Events(8);  // after these they wait for up to 0.8 seconds
  const auto start = Clock::now();
  CloseNow(&harness);
  CHECK(Clock::now() - start < std::chrono::milliseconds(700));
}

TEST_CASE("pool: Close returns at any moment") {
  for (uint32_t seed = 0; seed < 15; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int enough = random() % 60;
    PoolHarness harness(3, Sizes(), [seed](int a, int life) {
      Plan plan = Good(1 + a);
      plan.at = (seed * 7 + a * 5 + life * 3) % 20;
      (seed % 2 ? plan.fails : plan.hangs) = a % 2 ? Plan::kRead : Plan::kWrite;
      if (a == 2) plan = Good(2);
      return plan;
    });
    harness.threads.Start([&harness] {
      ErrorOf<Closed>([&] {
        while (true) harness.queue->Dequeue();
      });
    });
    Await([&] { return harness.transport->writes >= enough; });
    harness.End();
  }
}

// Runs for STRESS_S seconds, which is one second by default.
TEST_CASE("stress: eight threads play while streams fail, hang and are wrong, and pools close") {
  const char* asked = std::getenv("STRESS_S");
  const Clock::time_point end = Clock::now() + std::chrono::seconds(asked ? std::atoi(asked) : 1);
  for (uint32_t seed = 0; Clock::now() < end; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Sizes sizes;
    sizes.unroll_length = 1 + random() % 4;
    sizes.batch_size = 1 + random() % 6;
    sizes.capacity = sizes.batch_size + random() % 4;
    sizes.minimum = 1 + random() % 4;
    sizes.step_timeout = milliseconds(200);
    PoolHarness harness(8, sizes, [seed](int a, int life) {
      Plan plan = Good(1 + a % 3);
      std::mt19937 chance(1000 * seed + 10 * life + a);
      plan.at = chance() % 40;
      const int what = chance() % 8;
      const Plan::Place places[] = {Plan::kOpen, Plan::kRead, Plan::kWrite};
      if (what < 3) plan.fails = places[what];
      if (what == 3) plan.hangs = Plan::kRead;
      if (what == 4) plan.change_step = [](FakeStep* s) { s->view.observations.remove_suffix(1); };
      if (what > 4) plan.at = kForever;
      return plan;
    });
    std::atomic<bool> over{false};
    harness.threads.Start([&] {
      while (!over) {
        harness.pool->TakeEvents();
        Require(harness.pool->status().size() == 8, "status");
        harness.pool->seconds();
        harness.pool->latencies();
      }
    });
    const auto close = std::min(end, Clock::now() + milliseconds(200 + random() % 1800));
    Threads closing;  // closes while this thread waits in Dequeue or checks
    closing.Start([&] {
      std::this_thread::sleep_until(close);
      harness.pool->Close();
    });
    Checker checker(harness);
    ErrorOf<Closed>([&] {
      while (true) checker.Take();
    });
    closing.Join();
    over = true;
    harness.End();
  }
}

std::string ErrorOfOptions(const std::function<void(ActorPool::Options*)>& change, int actors = 1) {
  ActorPool::Options options;
  options.spec = CountingSpec();
  change(&options);
  const auto queue = std::make_shared<BatchingQueue>(1, 1);
  const auto batcher = std::make_shared<DynamicBatcher>(1, 1, hours(1));
  const auto transport = std::make_shared<FakeTransport>([](int, int) { return Plan(); });
  return ErrorOf<std::invalid_argument>(
      [&] { ActorPool(options, queue, batcher, transport, Addresses(actors)); });
}

TEST_CASE("pool: options are checked") {
  CHECK(ErrorOfOptions([](auto*) {}, 0) == "addresses: expected at least one");
  CHECK(ErrorOfOptions([](auto* o) { o->unroll_length = 0; }) ==
        "unroll_length: expected at least 1, seen 0");
  CHECK(ErrorOfOptions([](auto* o) {
          o->initial_core_state = {Array::Empty(kFloat32, {1, 2, 5})};
        }) == "initial_core_state: expected one column, seen float32[1, 2, 5]");
  // With a timeout of 0, the thread that looks for late streams would spin.
  CHECK(Has(ErrorOfOptions([](auto* o) { o->step_timeout = milliseconds(0); }), "step_timeout"));
  CHECK(Has(ErrorOfOptions([](auto* o) { o->reset_timeout = milliseconds(-1); }), "reset_timeout"));
}

}  // namespace
}  // namespace torchbeast
