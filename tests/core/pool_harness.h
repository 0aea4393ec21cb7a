// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What the tests of ActorPool share: a pool of fake streams, and a check of its batches.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actor_pool.h"
#include "fake_transport.h"
#include "testing.h"

namespace torchbeast {

inline std::vector<std::string> Addresses(int number) {
  std::vector<std::string> addresses;
  for (int i = 0; i < number; ++i) addresses.push_back(std::to_string(i));
  return addresses;
}

struct Sizes {
  int64_t unroll_length = 3, batch_size = 2, capacity = 6, minimum = 1, maximum = 6;
  std::chrono::microseconds timeout{500};
  std::chrono::milliseconds step_timeout = std::chrono::hours(1),
                            reset_timeout = std::chrono::hours(1), rest = std::chrono::hours(1);
  int failure_budget = 20;
  int64_t max_rollout_bytes = int64_t{1} << 31;
  int answerers = 2;
};

// Returns the network's outputs, or none to drop the batch.
using Answer = std::function<std::optional<NetIO>(const NetIO& inputs)>;

// A pool with its queue and batcher, and threads that answer for the network. A test calls End.
struct PoolHarness {
  PoolHarness(int actors, const Sizes& sizes, std::function<Plan(int, int)> plan,
              Answer answer = nullptr)
      : sizes(sizes),
        transport(std::make_shared<FakeTransport>(std::move(plan))),
        queue(std::make_shared<BatchingQueue>(sizes.batch_size, sizes.capacity)),
        batcher(std::make_shared<DynamicBatcher>(sizes.minimum, sizes.maximum, sizes.timeout)) {
    if (!answer) answer = [this](const NetIO& inputs) { return CountingNet(inputs, &calls); };
    for (int i = 0; i < sizes.answerers; ++i) {
      threads.Start([this, answer] {
        ErrorOf<Closed>([&] {
          while (true) {
            const auto batch = batcher->Next();
            if (const auto outputs = answer(batch->GetInputs())) batch->SetOutputs(*outputs);
          }
        });
      });
    }
    ActorPool::Options options;
    options.spec = CountingSpec(0);  // any number of environments
    options.unroll_length = sizes.unroll_length;
    options.initial_core_state = InitialState();
    options.step_timeout = sizes.step_timeout;
    options.reset_timeout = sizes.reset_timeout;
    options.failure_budget = sizes.failure_budget;
    options.rest = sizes.rest;
    options.max_rollout_bytes = sizes.max_rollout_bytes;
    pool = std::make_unique<ActorPool>(std::move(options), queue, batcher, transport,
                                       Addresses(actors));
  }

  // Takes events until there are `number` of them, and returns them sorted.
  std::vector<std::string> Events(size_t number) {
    Await([&] {
      for (const std::string& event : pool->TakeEvents()) events.push_back(event);
      for (const StreamMonitor::Status& status : pool->status())
        Require(!status.address.empty(), "status");
      Require(pool->seconds()[ActorTimes::kActorWaiting] >= 0, "seconds");
      return events.size() >= number;
    });
    std::sort(events.begin(), events.end());
    return events;
  }

  // Closes the pool and joins all threads.
  void End() {
    pool->Close();
    threads.Join();
    CHECK(transport->alive == 0);
    CHECK(transport->wrong_actions == 0);
  }

  const Sizes sizes;
  const std::shared_ptr<FakeTransport> transport;
  const std::shared_ptr<BatchingQueue> queue;
  const std::shared_ptr<DynamicBatcher> batcher;
  std::atomic<int64_t> calls{0};
  Threads threads;
  std::unique_ptr<ActorPool> pool;
  std::vector<std::string> events;
};

// Takes batches and checks every number in them. Each column must be what its environment's plan
// gives next, with nothing left out, and must begin where its environment's last rollout ended.
class Checker {
 public:
  explicit Checker(const PoolHarness& harness)
      : harness_(harness), T_(harness.sizes.unroll_length) {}

  // Takes batches until all environments of the first `actors` have had `rollouts` rollouts of
  // `life`.
  void Run(int actors, int life, int64_t rollouts) {
    Await([&] {
      Take();
      for (int a = 0; a < actors; ++a) {
        for (int64_t n = 0; n < harness_.transport->plan(a, 0).num_envs; ++n) {
          const Place& place = places_[{a, n}];
          if (place.life < life || (place.life == life && place.rollout < rollouts)) return false;
        }
      }
      return true;
    });
  }

  void Take() {
    const Dict batch = harness_.queue->Dequeue();
    CHECK(Names(batch) ==
          "count, flags, frame, echo, reward, done, terminated, truncated, episode_over, "
          "episode_step, episode_return, last_action, action, logits, given, call, core_state/0, "
          "core_state/1");
    for (const auto& [name, array] : batch) {
      Require(array.columns() == harness_.sizes.batch_size, name + " " + array.describe());
      Require(array.shape()[0] == (name == "core_state/0"   ? 2
                                   : name == "core_state/1" ? 1
                                                            : T_ + 1),
              name + " " + array.describe());
    }
    for (int64_t b = 0; b < harness_.sizes.batch_size; ++b) CheckColumn(batch, b);
  }

 private:
  struct Place {
    int life = 0;
    int64_t rollout = 0;  // the number of the next rollout
    int64_t call = -1;    // the network's call for the last row
  };

  template <class T>
  static T Get(const Dict& batch, const char* name, int64_t t, int64_t b, int64_t i = 0) {
    const Array& array = *Find(batch, name);
    Require(array.dtype() == DTypeFor<T>(), name);
    return array.as<T>()[(t * array.columns() + b) * (array.column_bytes() / sizeof(T)) + i];
  }

  void CheckColumn(const Dict& batch, int64_t b) {
    const int64_t count = Get<int64_t>(batch, "count", 0, b), name = count / 1'000'000;
    const int a = static_cast<int>(name / 10'000), life = static_cast<int>(name / 10 % 1000);
    const int64_t n = name % 10, first = count % 1'000'000;
    Place& place = places_[{a, n}];
    while (place.rollout == harness_.transport->plan(a, place.life).WholeRollouts(T_)) {
      place = {place.life + 1, 0, -1};
    }
    Require(life == place.life && first == T_ * place.rollout, "rollout of another time");
    if (place.call >= 0)
      Require(Get<int64_t>(batch, "call", 0, b) == place.call, "row 0 is not row T");
    CheckState(batch, b, Expected(a, life, n, first));
    for (int64_t t = 0; t <= T_; ++t) CheckRow(batch, t, b, a, life, n, first + t);
    place.call = Get<int64_t>(batch, "call", T_, b);
    ++place.rollout;
  }

  static void CheckState(const Dict& batch, int64_t b, const Expected& expected) {
    Require(Get<int64_t>(batch, "core_state/0", 0, b) == expected.calls_in_episode,
            "state, layer 0");
    Require(Get<int64_t>(batch, "core_state/0", 1, b) == expected.calls, "state, layer 1");
    Require(Get<float>(batch, "core_state/1", 0, b, 0) == expected.calls, "state 1");
    Require(Get<float>(batch, "core_state/1", 0, b, 1) == -expected.calls, "state 1");
  }

  static void CheckRow(const Dict& batch, int64_t t, int64_t b, int a, int life, int64_t n,
                       int64_t s) {
    const Expected row(a, life, n, s);
    const auto is = [&](const char* name, auto value, int64_t i = 0) {
      Require(Get<decltype(value)>(batch, name, t, b, i) == value, name);
    };
    const int64_t before = s == 0 ? 0 : Expected(a, life, n, s - 1).action;
    is("count", row.count);
    is("flags", s % 2 == 1, 0);
    is("flags", n % 2 == 1, 1);
    for (int i = 0; i < 3; ++i) is("frame", static_cast<uint8_t>(row.count + i), i);
    is("echo", static_cast<int32_t>(before));
    is("reward", row.reward);
    is("episode_return", row.reward + 1);
    is("episode_step", static_cast<int32_t>(row.position));
    is("done", row.done);
    is("terminated", row.terminated);
    is("truncated", row.truncated);
    is("episode_over", row.last);
    is("last_action", row.done ? 0 : before);
    is("action", row.action);
    is("logits", static_cast<float>(row.count % 1000 * 10 + 3), 3);
    is("given", row.calls_in_episode, 0);
    is("given", row.calls, 1);
  }

  const PoolHarness& harness_;
  const int64_t T_;
  std::map<std::pair<int, int64_t>, Place> places_;
};

// Nothing goes wrong.
inline Plan Good(int64_t num_envs) {
  Plan plan;
  plan.num_envs = num_envs;
  return plan;
}

// Returns the event with which the pool reports the error. Addresses are the actors' numbers.
inline std::string Event(int actor, const std::string& error) {
  const std::string number = std::to_string(actor);
  return "actor " + number + ", " + number + ": " + error;
}

}  // namespace torchbeast
