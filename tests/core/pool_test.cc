// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>

#include "actor_pool.h"
#include "fake_transport.h"
#include "testing.h"

namespace torchbeast {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

std::vector<std::string> Addresses(int number) {
  std::vector<std::string> addresses;
  for (int i = 0; i < number; ++i) addresses.push_back(std::to_string(i));
  return addresses;
}

struct Sizes {
  int64_t unroll_length = 3, batch_size = 2, capacity = 6, minimum = 1, maximum = 6;
  std::chrono::microseconds timeout{500};
  milliseconds step_timeout = hours(1), reset_timeout = hours(1), rest = hours(1);
  int failure_budget = 20;
  int answerers = 2;
};

using Answer = std::function<std::optional<NetIO>(const NetIO& inputs)>;  // none: drop it

// A pool, its queue and batcher, and threads that answer. Closed and joined at the end.
struct Play {
  Play(int actors, const Sizes& sizes, std::function<Plan(int, int)> plan, Answer answer = nullptr)
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
    options.spec = CountingSpec();
    options.unroll_length = sizes.unroll_length;
    options.initial_core_state = InitialState();
    options.step_timeout = sizes.step_timeout;
    options.reset_timeout = sizes.reset_timeout;
    options.failure_budget = sizes.failure_budget;
    options.rest = sizes.rest;
    pool = std::make_unique<ActorPool>(std::move(options), queue, batcher, transport,
                                       Addresses(actors));
  }

  // Takes events until there are as many, and returns them sorted.
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

// Takes batches and checks every number of them: each column is what its environment's plan gives
// next, nothing left out, and goes on where the column's last rollout ended.
class Checker {
 public:
  explicit Checker(const Play& play) : play_(play), T_(play.sizes.unroll_length) {}

  // Until the environments of the first `actors` have come to `life`, and as many rollouts of it.
  void Run(int actors, int life, int64_t rollouts) {
    Await([&] {
      Take();
      for (int a = 0; a < actors; ++a) {
        for (int64_t n = 0; n < play_.transport->plan(a, 0).num_envs; ++n) {
          const Place& place = places_[{a, n}];
          if (place.life < life || (place.life == life && place.rollout < rollouts)) return false;
        }
      }
      return true;
    });
  }

  void Take() {
    const Dict batch = play_.queue->Dequeue();
    CHECK(Names(batch) ==
          "count, flags, frame, echo, reward, done, terminated, truncated, episode_over, "
          "episode_step, episode_return, last_action, action, logits, given, call, core_state/0, "
          "core_state/1");
    for (const auto& [name, array] : batch) {
      Require(array.columns() == play_.sizes.batch_size, name + " " + array.describe());
      Require(array.shape()[0] == (name == "core_state/0"   ? 2
                                   : name == "core_state/1" ? 1
                                                            : T_ + 1),
              name + " " + array.describe());
    }
    for (int64_t b = 0; b < play_.sizes.batch_size; ++b) CheckColumn(batch, b);
  }

 private:
  struct Place {
    int life = 0;
    int64_t rollout = 0, call = -1;  // the next one's number; the last row's call
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
    while (place.rollout == play_.transport->plan(a, place.life).WholeRollouts(T_)) {
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

  const Play& play_;
  const int64_t T_;
  std::map<std::pair<int, int64_t>, Place> places_;
};

Plan Good(int64_t num_envs) {
  Plan plan;
  plan.num_envs = num_envs;
  return plan;
}

// As the pool reports it, whose addresses are the actors' numbers.
std::string Event(int actor, const std::string& error) {
  const std::string number = std::to_string(actor);
  return "actor " + number + ", " + number + ": " + error;
}

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
    Play play(actors, sizes, [](int a, int) { return Good(1 + a); });
    Checker(play).Run(actors, 0, 12);
    CHECK(play.pool->TakeEvents().empty());
    for (const StreamMonitor::Status& status : play.pool->status()) {
      CHECK(status.connected);
      CHECK(status.failures == 0);
      CHECK(status.last_error == "");
    }
    for (double seconds : play.pool->seconds()) CHECK(seconds > 0);
    play.End();
  }
}

TEST_CASE("pool: what a server says of its time is taken for no more than the wait") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double said : {1e30, -1.0, nan}) {
    CAPTURE(said);
    const auto start = Clock::now();
    Play play(1, Sizes(), [said](int, int) {
      Plan plan = Good(1);
      plan.at = 0;
      plan.change_step = [said](FakeStep* step) { step->view.environment_seconds = said; };
      return plan;
    });
    for (int i = 0; i < 2; ++i) play.queue->Dequeue();
    play.End();
    const double lasted = std::chrono::duration<double>(Clock::now() - start).count();
    const auto seconds = play.pool->seconds();
    for (double time : seconds) CHECK(time >= 0);
    CHECK(std::accumulate(seconds.begin(), seconds.end(), 0.0) <= lasted);
  }
}

TEST_CASE("pool: a row's latency is from its arrival to its actions being sent, counted once") {
  std::atomic<int64_t> calls{0};
  constexpr milliseconds kSlow{5};
  Play play(
      2, Sizes(), [](int, int) { return Good(3); },
      [&](const NetIO& inputs) {
        std::this_thread::sleep_for(kSlow);
        return CountingNet(inputs, &calls);
      });
  Checker(play).Run(2, 0, 3);
  play.End();
  const std::vector<int64_t> latencies = play.pool->latencies();
  CHECK(std::accumulate(latencies.begin(), latencies.end(), int64_t{0}) == play.transport->writes);
  const auto least = latencies.begin() + ActorTimes::LatencyBin(kSlow);
  CHECK(std::accumulate(latencies.begin(), least, int64_t{0}) == 0);
}

TEST_CASE("pool: a stream that fails loses its partial rollout, and begins anew; others go on") {
  constexpr int kActors = 8;
  Play play(kActors, Sizes(), [](int a, int life) {
    Plan plan = Good(1 + a % 3);
    if (a == 7 || life >= 2) return plan;
    plan.fails = a == 0 ? Plan::kOpen : a % 2 ? Plan::kRead : Plan::kWrite;
    const int64_t at[] = {kForever, 0, 0, 1, 3, 3, 5, kForever};  // a rollout is 3 Steps and row 0
    plan.at = at[a] + (life == 1 ? 4 : 0);
    return plan;
  });
  Checker checker(play);
  checker.Run(kActors - 1, 2, 2);
  checker.Run(kActors, 0, 10);
  const std::vector<std::string> events = play.Events(14);
  CHECK(events.size() == 14);
  CHECK(events[0] == Event(0, "UNAVAILABLE: gone at 0"));
  CHECK(std::count(events.begin(), events.end(), Event(3, "UNAVAILABLE: gone at 1")) == 1);
  CHECK(std::count(events.begin(), events.end(), Event(3, "UNAVAILABLE: gone at 5")) == 1);
  const auto statuses = play.pool->status();
  REQUIRE(statuses.size() == kActors);
  for (int a = 0; a < kActors; ++a) {
    CHECK(statuses[a].address == std::to_string(a));
    CHECK(statuses[a].connected);
    CHECK(statuses[a].failures == (a == 7 ? 0 : 2));
    CHECK(Has(statuses[a].last_error, a == 7 ? "" : "UNAVAILABLE: gone at "));
  }
  CHECK(play.transport->births(7).size() == 1);
  play.End();
}

struct Wrong {
  const char* error;  // part of it
  std::function<void(FakeStep*)> change;
  int64_t at = 4;  // in the second rollout
};

TEST_CASE("pool: a Step that is wrong ends its stream, and reaches no batch") {
  static bool no_bools[kMostFakeEnvs] = {};
  static float no_floats[kMostFakeEnvs] = {};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Wrong> wrongs = {
      {"observations: expected 34 bytes, seen 0", [](FakeStep* s) { s->view.observations = {}; }},
      {"observations: expected 34 bytes, seen 33",
       [](FakeStep* s) { s->view.observations.remove_suffix(1); }},
      {"reward: expected 2 values, seen 1", [](FakeStep* s) { s->view.reward.size = 1; }},
      {"episode_return: expected 2 values, seen 3",
       [](FakeStep* s) { s->view.episode_return = {no_floats, 3}; }},
      {"done: expected 2 values, seen 0", [](FakeStep* s) { s->view.done.size = 0; }},
      {"terminated: expected 2 values, seen 8",
       [](FakeStep* s) { s->view.terminated = {no_bools, 8}; }},
      {"truncated: expected 2 values, seen 1", [](FakeStep* s) { s->view.truncated.size = 1; }},
      {"episode_over: expected 2 values, seen 1",
       [](FakeStep* s) { s->view.episode_over.size = 1; }},
      {"episode_step: expected 2 values, seen 0", [](FakeStep* s) { s->view.episode_step = {}; }},
      {"reward: expected finite numbers, seen ", [=](FakeStep* s) { s->reward[1] = nan; }},
      {"reward: expected finite numbers, seen inf", [=](FakeStep* s) { s->reward[0] = infinity; }},
      {"episode_return: expected finite numbers", [=](FakeStep* s) { s->episode_return[1] = nan; }},
      {"flags (bool): expected bytes 0 and 1", [](FakeStep* s) { s->observations[17] = 2; }},
      {"done, at a reset: expected true", [](FakeStep* s) { s->done[1] = false; }, 0},
      {"reward: expected 2 values, seen 1", [](FakeStep* s) { s->view.reward.size = 1; }, 0},
  };
  const int wrong = static_cast<int>(wrongs.size()), actors = wrong + 2;
  Sizes sizes;
  sizes.maximum = 12;
  Play play(actors, sizes, [&](int a, int life) {
    Plan plan = Good(2);
    if (a >= wrong || life > 0) return plan;
    plan.change_step = wrongs[a].change;
    plan.at = wrongs[a].at;
    return plan;
  });
  Checker checker(play);
  checker.Run(wrong, 1, 1);
  checker.Run(actors, 0, 3);
  const std::vector<std::string> events = play.Events(wrong);
  CHECK(events.size() == wrongs.size());
  for (int a = 0; a < wrong; ++a) {
    const std::string start =
        Event(a, std::string("INVALID_ARGUMENT: a Step's ") + wrongs[a].error);
    CHECK_MESSAGE(std::any_of(events.begin(), events.end(),
                              [&](const std::string& event) { return event.rfind(start, 0) == 0; }),
                  start);
  }
  play.End();
}

TEST_CASE("pool: a Spec that does not fit, or too many environments, ends that stream") {
  const std::vector<std::pair<std::string, std::function<void(Spec*)>>> wrongs = {
      {"seen Catching: count", [](Spec* spec) { spec->name = "Catching"; }},
      {"seen Counting: picture", [](Spec* spec) { spec->observations[0].name = "picture"; }},
      {"count int32[]", [](Spec* spec) { spec->observations[0].dtype = kInt32; }},
      {"frame uint8[4]", [](Spec* spec) { spec->observations[2].shape = {4}; }},
      {"frame uint8[3] (a stack of frames)", [](Spec* spec) { spec->observations[2].stack = 3; }},
      {"discrete actions 8", [](Spec* spec) { spec->action_sizes = {8}; }},
      {"2 frames per step", [](Spec* spec) { spec->frames_per_step = 2; }},
      {"expected 1 to 6 (the largest inference batch), seen 7",
       [](Spec* spec) { spec->num_envs = 7; }},
      {"expected 1 to 6 (the largest inference batch), seen 0",
       [](Spec* spec) { spec->num_envs = 0; }},
      {"expected 1 to 6 (the largest inference batch), seen -1",
       [](Spec* spec) { spec->num_envs = -1; }},
  };
  const int wrong = static_cast<int>(wrongs.size()), actors = wrong + 1;
  Play play(actors, Sizes(), [&](int a, int life) {
    Plan plan = Good(1);
    if (a < wrong && life == 0) plan.change_spec = wrongs[a].second;
    return plan;
  });
  Checker checker(play);
  checker.Run(wrong, 1, 1);
  checker.Run(actors, 0, 1);
  const std::vector<std::string> events = play.Events(wrong);
  CHECK(events.size() == wrongs.size());
  for (int a = 0; a < wrong; ++a) {
    CAPTURE(events[a]);
    CHECK(events[a].rfind(Event(a, "FAILED_PRECONDITION: "), 0) == 0);
    CHECK(Has(events[a], wrongs[a].first));
    if (a < 6)
      CHECK(Has(events[a], "expected Counting: count int64[], flags bool[2], frame uint8[3]"));
  }
  play.End();
}

TEST_CASE("pool: a stream that hangs is cancelled after its timeout") {
  Sizes sizes;
  sizes.step_timeout = milliseconds(150);
  sizes.reset_timeout = milliseconds(300);
  Play play(4, sizes, [](int a, int life) {
    Plan plan = Good(1);
    if (a == 3 || life > 0) return plan;
    plan.hangs = a == 0 ? Plan::kOpen : Plan::kRead;
    plan.at = a == 1 ? 0 : 5;
    return plan;
  });
  Checker(play).Run(3, 1, 1);
  play.Events(3);
  for (int a = 0; a < 3; ++a) {
    const std::string event = Event(
        a, std::string("DEADLINE_EXCEEDED: the server took too long for one answer, more than ") +
               (a == 2 ? "0.15 s" : "0.3 s"));
    CHECK_MESSAGE(std::count(play.events.begin(), play.events.end(), event) >= 1, event);
    CHECK(play.transport->waited(a) >= (a == 2 ? sizes.step_timeout : sizes.reset_timeout));
  }
  play.End();
}

TEST_CASE("pool: a stream that hangs in Write is cancelled too") {
  Sizes sizes;
  sizes.step_timeout = milliseconds(100);
  Play play(1, sizes, [](int, int life) {
    Plan plan = Good(1);
    if (life > 0) return plan;
    plan.hangs = Plan::kWrite;
    plan.at = 4;
    return plan;
  });
  Await([&] { return play.transport->hanging == 1 || play.transport->births(0).size() > 1; });
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(3);
  Await([&] { return play.transport->births(0).size() > 1 || Clock::now() > limit; });
  CHECK(play.transport->births(0).size() > 1);
  play.End();
}

TEST_CASE("pool: a dropped batch ends its streams, which begin anew, and says so with a code") {
  std::atomic<int> calls_left{5};
  std::atomic<int64_t> calls{0};
  Sizes sizes;
  sizes.answerers = 1;
  Play play(
      1, sizes,
      [](int, int life) {
        Plan plan = Good(2);
        if (life == 0) plan.at = 5;  // the sixth Step's batch is dropped
        return plan;
      },
      [&](const NetIO& inputs) -> std::optional<NetIO> {
        if (calls_left-- == 0) return std::nullopt;
        return CountingNet(inputs, &calls);
      });
  Checker(play).Run(1, 1, 2);
  const std::vector<std::string> events = play.Events(1);
  REQUIRE(events.size() == 1);
  CHECK(Has(events[0], "the batch was dropped without an answer"));
  CHECK_MESSAGE(std::count(events[0].begin(), events[0].end(), ':') == 2,
                events[0]);  // ADDRESS: CODE: text
  play.End();
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
      {"outputs: expected logits float32[1, 2, 7]; seen policy float32[1, 2, 7]",
       [](auto* e) { e->arrays[1].first = "policy"; }},
      {"outputs: expected logits float32[1, 2, 7]; seen logits float32[1, 2, 1]",
       [](auto* e) { e->arrays[1].second = Array::Empty(kFloat32, {1, 2, 1}); }},
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
    Play play(
        2, sizes, [](int, int) { return Good(2); },
        [&](const NetIO& inputs) {
          std::optional<NetIO> outputs = CountingNet(inputs, &calls);
          if (++batches > 6) bad.change(&*outputs);
          return outputs;
        });
    ErrorOf<Closed>([&] {
      while (true) play.queue->Dequeue();
    });
    CHECK(ErrorOf<std::runtime_error>([&] { play.pool->TakeEvents(); }) == bad.error);
    CHECK(ErrorOf<std::runtime_error>([&] { play.pool->TakeEvents(); }) == bad.error);
    play.End();
  }
}

TEST_CASE("pool: outputs that differ between actors end it") {
  std::atomic<int64_t> calls{0};
  Sizes sizes;
  sizes.minimum = sizes.maximum = 2;
  Play play(
      2, sizes, [](int, int) { return Good(2); },
      [&](const NetIO& inputs) {
        std::optional<NetIO> outputs = CountingNet(inputs, &calls);
        const bool second = Find(inputs.arrays, "count")->as<int64_t>()[0] >= 10'000'000'000;
        if (second) outputs->arrays.pop_back();
        return outputs;
      });
  ErrorOf<Closed>([&] {
    while (true) play.queue->Dequeue();
  });
  CHECK(Has(ErrorOf<std::runtime_error>([&] { play.pool->TakeEvents(); }),
            "expected the arrays count, "));
  play.End();
}

TEST_CASE("pool: an output with an environment's name ends it") {
  std::atomic<int64_t> calls{0};
  Play play(
      1, Sizes(), [](int, int) { return Good(1); },
      [&](const NetIO& inputs) {
        std::optional<NetIO> outputs = CountingNet(inputs, &calls);
        outputs->arrays[1].first = "reward";
        return outputs;
      });
  CHECK_THROWS_AS(play.queue->Dequeue(), Closed);
  CHECK(ErrorOf<std::runtime_error>([&] { play.pool->TakeEvents(); }) ==
        "output reward: expected a name that is not the environment's");
  play.End();
}

// Closes the pool from two threads at once, and again, and leaves the rest to the destructors.
void CloseNow(Play* play) {
  Threads closing;
  for (int i = 0; i < 2; ++i) closing.Start([play] { play->pool->Close(); });
  closing.Join();
  CHECK_THROWS_AS(play->queue->Dequeue(), Closed);
  CHECK_THROWS_AS(play->batcher->Next(), Closed);
  CHECK(play->pool->TakeEvents().empty());  // an end that was asked for is no failure
  play->End();
  play->pool.reset();
}

TEST_CASE("pool: Close returns while threads wait in a stream") {
  for (const auto& [place, at] : std::vector<std::pair<Plan::Place, int64_t>>{{Plan::kOpen, 0},
                                                                              {Plan::kRead, 0},
                                                                              {Plan::kRead, 2},
                                                                              {Plan::kWrite, 0},
                                                                              {Plan::kWrite, 2}}) {
    CAPTURE(place);
    CAPTURE(at);
    Play play(3, Sizes(), [place = place, at = at](int, int) {
      Plan plan = Good(1);
      plan.hangs = place;
      plan.at = at;
      return plan;
    });
    Await([&] { return play.transport->hanging == 3; });
    CloseNow(&play);
  }
}

TEST_CASE("pool: Close returns while threads wait for the network") {
  Sizes sizes;
  sizes.answerers = 0;
  sizes.maximum = 2;
  Play play(3, sizes, [](int, int) { return Good(1); });
  Await([&] { return play.batcher->size() >= 2; });
  const auto handed_out = play.batcher->Next();
  Await([&] { return play.batcher->size() + handed_out->columns() == 3; });
  CloseNow(&play);
}

TEST_CASE("pool: Close returns while threads wait at the queue") {
  Sizes sizes;
  sizes.unroll_length = 1;
  sizes.batch_size = sizes.capacity = 1;
  Play play(2, sizes, [](int, int) { return Good(1); });
  // One rollout is inside. Its actor has written 2 + 1 actions, the other 2: then both wait.
  Await([&] { return play.transport->writes == 5; });
  CHECK(play.queue->size() == 1);
  CloseNow(&play);
}

TEST_CASE("pool: Close returns while threads back off") {
  Play play(2, Sizes(), [](int, int) {
    Plan plan;
    plan.fails = Plan::kOpen;
    return plan;
  });
  play.Events(8);  // by now they wait for 0.8 seconds
  const auto start = Clock::now();
  CloseNow(&play);
  CHECK(Clock::now() - start < std::chrono::milliseconds(700));
}

TEST_CASE("pool: Close returns at any moment") {
  for (uint32_t seed = 0; seed < 15; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int enough = random() % 60;
    Play play(3, Sizes(), [seed](int a, int life) {
      Plan plan = Good(1 + a);
      plan.at = (seed * 7 + a * 5 + life * 3) % 20;
      (seed % 2 ? plan.fails : plan.hangs) = a % 2 ? Plan::kRead : Plan::kWrite;
      if (a == 2) plan = Good(2);
      return plan;
    });
    play.threads.Start([&play] {
      ErrorOf<Closed>([&] {
        while (true) play.queue->Dequeue();
      });
    });
    Await([&] { return play.transport->writes >= enough; });
    play.End();
  }
}

// STRESS_S seconds of it, a second by default.
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
    Play play(8, sizes, [seed](int a, int life) {
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
    play.threads.Start([&] {
      while (!over) {
        play.pool->TakeEvents();
        Require(play.pool->status().size() == 8, "status");
        play.pool->seconds();
        play.pool->latencies();
      }
    });
    const auto close = std::min(end, Clock::now() + milliseconds(200 + random() % 1800));
    Threads closing;  // while this thread waits in Dequeue, or checks
    closing.Start([&] {
      std::this_thread::sleep_until(close);
      play.pool->Close();
    });
    Checker checker(play);
    ErrorOf<Closed>([&] {
      while (true) checker.Take();
    });
    closing.Join();
    over = true;
    play.End();
  }
}

TEST_CASE("pool: the back-off doubles, and begins anew after a whole rollout") {
  Play play(1, Sizes(), [](int, int life) {
    Plan plan = Good(2);
    plan.fails = life < 4 ? Plan::kOpen : Plan::kRead;
    plan.at = life < 7 ? 5 : kForever;  // a whole rollout, and a part of another
    return plan;
  });
  Checker(play).Run(1, 7, 1);
  const auto births = play.transport->births(0);
  REQUIRE(births.size() == 8);
  const auto gap = [&](int i) { return births[i + 1] - births[i]; };
  for (int i = 0; i < 4; ++i) CHECK(gap(i) >= milliseconds(50 << i));
  CHECK(std::min({gap(4), gap(5), gap(6)}) < milliseconds(700));  // all at least 750, otherwise
  for (int i = 4; i < 7; ++i) CHECK(gap(i) >= milliseconds(50));
  play.End();
}

TEST_CASE("pool: a stream that keeps failing is given up, and tried again after a rest") {
  Sizes sizes;
  sizes.failure_budget = 3;
  sizes.rest = milliseconds(1500);
  Play play(2, sizes, [](int a, int life) {
    Plan plan = Good(2);
    if (a == 1) {  // is away only
      plan.fails = life < 4 ? Plan::kOpen : Plan::kNowhere;
    } else if (life < 4) {
      plan.at = 2;  // before a whole rollout
      plan.change_step = [](FakeStep* step) { step->view.reward.size = 1; };
    } else if (life == 4) {
      plan.fails = Plan::kRead;
      plan.at = 5;
    }
    return plan;
  });
  Checker(play).Run(1, 5, 1);
  const auto births = play.transport->births(0), away = play.transport->births(1);
  const auto gap = [&](int i) { return births[i + 1] - births[i]; };
  CHECK(gap(2) >= sizes.rest);
  CHECK(gap(3) >= sizes.rest);
  CHECK(std::min({gap(0), gap(1), gap(4)}) < sizes.rest);
  REQUIRE(away.size() == 5);
  CHECK(std::min(away[3] - away[2], away[4] - away[3]) < sizes.rest);
  const auto events = play.Events(9);
  CHECK(std::count_if(events.begin(), events.end(), [](const std::string& event) {
          return Has(event,
                     "\n3 failures in a row without a rollout: given up, and tried again only "
                     "every 1.5 s");
        }) == 1);
  play.End();
}

Plan FailsToOpen(int, int) {
  Plan plan;
  plan.fails = Plan::kOpen;
  return plan;
}

// Skipped by default, for the 4 seconds that it waits: --no-skip runs it.
TEST_CASE("pool: the back-off goes up to 1.5 seconds" * doctest::skip()) {
  Play play(1, Sizes(), FailsToOpen);
  Await([&] { return play.transport->births(0).size() == 8; });
  const auto births = play.transport->births(0);
  CHECK(births[7] - births[6] >= milliseconds(750));
  CHECK(births[7] - births[6] < milliseconds(2500));
  play.End();
}

TEST_CASE("pool: actors that failed together do not come back together") {
  constexpr int kActors = 16;
  Play play(kActors, Sizes(), FailsToOpen);
  std::vector<Clock::duration> gaps;  // 100 to 200 ms
  for (int a = 0; a < kActors; ++a) {
    Await([&] { return play.transport->births(a).size() >= 3; });
    const auto births = play.transport->births(a);
    gaps.push_back(births[2] - births[1]);
  }
  const auto [shortest, longest] = std::minmax_element(gaps.begin(), gaps.end());
  CHECK(*longest - *shortest > milliseconds(20));
  play.End();
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
}

TEST_CASE("pool: timeouts are checked") {  // the thread that looks for late streams would spin
  CHECK(Has(ErrorOfOptions([](auto* o) { o->step_timeout = milliseconds(0); }), "step_timeout"));
  CHECK(Has(ErrorOfOptions([](auto* o) { o->reset_timeout = milliseconds(-1); }), "reset_timeout"));
}

}  // namespace
}  // namespace torchbeast
