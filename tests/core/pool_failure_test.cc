// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Streams of a pool that fail, hang or send what is wrong, and the back-off after that.
#include <algorithm>
#include <limits>
#include <new>

#include "pool_harness.h"

namespace torchbeast {
namespace {

using std::chrono::milliseconds;

TEST_CASE(
    "pool: a stream that fails loses its partial rollout and is opened again, and others go on") {
  constexpr int kActors = 8;
  PoolHarness harness(kActors, Sizes(), [](int a, int life) {
    Plan plan = Good(1 + a % 3);
    if (a == 7 || life >= 2) return plan;
    plan.fails = a == 0 ? Plan::kOpen : a % 2 ? Plan::kRead : Plan::kWrite;
    const int64_t at[] = {kForever, 0, 0, 1, 3, 3, 5, kForever};  // a rollout is 3 Steps and row 0
    plan.at = at[a] + (life == 1 ? 4 : 0);
    return plan;
  });
  Checker checker(harness);
  checker.Run(kActors - 1, 2, 2);
  checker.Run(kActors, 0, 10);
  const std::vector<std::string> events = harness.Events(14);
  CHECK(events.size() == 14);
  CHECK(events[0] == Event(0, "UNAVAILABLE: gone at 0"));
  CHECK(std::count(events.begin(), events.end(), Event(3, "UNAVAILABLE: gone at 1")) == 1);
  CHECK(std::count(events.begin(), events.end(), Event(3, "UNAVAILABLE: gone at 5")) == 1);
  const auto statuses = harness.pool->status();
  REQUIRE(statuses.size() == kActors);
  for (int a = 0; a < kActors; ++a) {
    CHECK(statuses[a].address == std::to_string(a));
    CHECK(statuses[a].connected);
    CHECK(statuses[a].failures == (a == 7 ? 0 : 2));
    CHECK(Has(statuses[a].last_error, a == 7 ? "" : "UNAVAILABLE: gone at "));
  }
  CHECK(harness.transport->births(7).size() == 1);
  harness.End();
}

struct Wrong {
  const char* error;  // a part of its text
  std::function<void(FakeStep*)> change;
  int64_t at = 4;  // in the second rollout
};

TEST_CASE("pool: a Step that is wrong ends its stream, and reaches no batch") {
  static bool no_bools[kMaxFakeEnvs] = {};
  static float no_floats[kMaxFakeEnvs] = {};
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
  PoolHarness harness(actors, sizes, [&](int a, int life) {
    Plan plan = Good(2);
    if (a >= wrong || life > 0) return plan;
    plan.change_step = wrongs[a].change;
    plan.at = wrongs[a].at;
    return plan;
  });
  Checker checker(harness);
  checker.Run(wrong, 1, 1);
  checker.Run(actors, 0, 3);
  const std::vector<std::string> events = harness.Events(wrong);
  CHECK(events.size() == wrongs.size());
  for (int a = 0; a < wrong; ++a) {
    const std::string start =
        Event(a, std::string("INVALID_ARGUMENT: a Step's ") + wrongs[a].error);
    CHECK_MESSAGE(std::any_of(events.begin(), events.end(),
                              [&](const std::string& event) { return event.rfind(start, 0) == 0; }),
                  start);
  }
  harness.End();
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
  PoolHarness harness(actors, Sizes(), [&](int a, int life) {
    Plan plan = Good(1);
    if (a < wrong && life == 0) plan.change_spec = wrongs[a].second;
    return plan;
  });
  Checker checker(harness);
  checker.Run(wrong, 1, 1);
  checker.Run(actors, 0, 1);
  const std::vector<std::string> events = harness.Events(wrong);
  CHECK(events.size() == wrongs.size());
  for (int a = 0; a < wrong; ++a) {
    CAPTURE(events[a]);
    CHECK(events[a].rfind(Event(a, "FAILED_PRECONDITION: "), 0) == 0);
    CHECK(Has(events[a], wrongs[a].first));
    if (a < 6)
      CHECK(Has(events[a], "expected Counting: count int64[], flags bool[2], frame uint8[3]"));
  }
  harness.End();
}

TEST_CASE("pool: a stream for which there is too little memory ends, and others go on") {
  Sizes sizes;
  sizes.max_rollout_bytes = 5 * 252 + 251;
  PoolHarness harness(3, sizes, [](int a, int life) {
    Plan plan = Good(a == 2 ? 5 : 1);
    if (a == 0 && life == 0) plan.change_spec = [](Spec* spec) { spec->num_envs = 6; };
    if (a == 1 && life == 0) {
      plan.at = 2;
      plan.change_step = [](FakeStep*) { throw std::bad_alloc(); };
    }
    return plan;
  });
  Checker checker(harness);
  checker.Run(2, 1, 1);
  checker.Run(3, 0, 2);
  const std::vector<std::string> events = harness.Events(2);
  REQUIRE(events.size() == 2);
  // 4 rows of 57 bytes, and a state of 24
  CHECK(events[0] == Event(0,
                           "RESOURCE_EXHAUSTED: environments a stream: expected at most 5, whose "
                           "rollouts fit into memory (252 bytes each), seen 6"));
  CHECK(events[1] == Event(1, "RESOURCE_EXHAUSTED: the learner has no memory for the stream"));
  harness.End();
}

TEST_CASE("pool: a stream that hangs is cancelled after its timeout") {
  Sizes sizes;
  sizes.step_timeout = milliseconds(150);
  sizes.reset_timeout = milliseconds(300);
  PoolHarness harness(4, sizes, [](int a, int life) {
    Plan plan = Good(1);
    if (a == 3 || life > 0) return plan;
    plan.hangs = a == 0 ? Plan::kOpen : Plan::kRead;
    plan.at = a == 1 ? 0 : 5;
    return plan;
  });
  Checker(harness).Run(3, 1, 1);
  harness.Events(3);
  for (int a = 0; a < 3; ++a) {
    const std::string event = Event(
        a, std::string("DEADLINE_EXCEEDED: the server took too long for one answer, more than ") +
               (a == 2 ? "0.15 s" : "0.3 s"));
    CHECK_MESSAGE(std::count(harness.events.begin(), harness.events.end(), event) >= 1, event);
    CHECK(harness.transport->waited(a) >= (a == 2 ? sizes.step_timeout : sizes.reset_timeout));
  }
  harness.End();
}

TEST_CASE("pool: a stream that hangs in Write is cancelled too") {
  Sizes sizes;
  sizes.step_timeout = milliseconds(100);
  PoolHarness harness(1, sizes, [](int, int life) {
    Plan plan = Good(1);
    if (life > 0) return plan;
    plan.hangs = Plan::kWrite;
    plan.at = 4;
    return plan;
  });
  Await([&] { return harness.transport->hanging == 1 || harness.transport->births(0).size() > 1; });
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(3);
  Await([&] { return harness.transport->births(0).size() > 1 || Clock::now() > limit; });
  CHECK(harness.transport->births(0).size() > 1);
  harness.End();
}

TEST_CASE(
    "pool: a dropped batch ends its streams, which are opened again, and the event has a code") {
  std::atomic<int> calls_left{5};
  std::atomic<int64_t> calls{0};
  Sizes sizes;
  sizes.answerers = 1;
  PoolHarness harness(
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
  Checker(harness).Run(1, 1, 2);
  const std::vector<std::string> events = harness.Events(1);
  REQUIRE(events.size() == 1);
  CHECK(Has(events[0], "the batch was dropped without an answer"));
  CHECK_MESSAGE(std::count(events[0].begin(), events[0].end(), ':') == 2,
                events[0]);  // ADDRESS: CODE: text
  harness.End();
}

TEST_CASE("pool: the back-off doubles, and begins again after a whole rollout") {
  PoolHarness harness(1, Sizes(), [](int, int life) {
    Plan plan = Good(2);
    plan.fails = life < 4 ? Plan::kOpen : Plan::kRead;
    plan.at = life < 7 ? 5 : kForever;  // fails after a whole rollout and a part of another
    return plan;
  });
  Checker(harness).Run(1, 7, 1);
  const auto births = harness.transport->births(0);
  REQUIRE(births.size() == 8);
  const auto gap = [&](int i) { return births[i + 1] - births[i]; };
  for (int i = 0; i < 4; ++i) CHECK(gap(i) >= milliseconds(50 << i));
  CHECK(std::min({gap(4), gap(5), gap(6)}) < milliseconds(700));  // otherwise all are at least 750
  for (int i = 4; i < 7; ++i) CHECK(gap(i) >= milliseconds(50));
  harness.End();
}

TEST_CASE("pool: a stream that keeps failing is given up, and tried again after a rest") {
  Sizes sizes;
  sizes.failure_budget = 3;
  sizes.rest = milliseconds(1500);
  PoolHarness harness(2, sizes, [](int a, int life) {
    Plan plan = Good(2);
    if (a == 1) {  // its server is only away
      plan.fails = life < 4 ? Plan::kOpen : Plan::kNowhere;
    } else if (life < 4) {
      plan.at = 2;  // fails before a whole rollout
      plan.change_step = [](FakeStep* step) { step->view.reward.size = 1; };
    } else if (life == 4) {
      plan.fails = Plan::kRead;
      plan.at = 5;
    }
    return plan;
  });
  Checker(harness).Run(1, 5, 1);
  const auto births = harness.transport->births(0), away = harness.transport->births(1);
  const auto gap = [&](int i) { return births[i + 1] - births[i]; };
  CHECK(gap(2) >= sizes.rest);
  CHECK(gap(3) >= sizes.rest);
  CHECK(std::min({gap(0), gap(1), gap(4)}) < sizes.rest);
  REQUIRE(away.size() == 5);
  CHECK(std::min(away[3] - away[2], away[4] - away[3]) < sizes.rest);
  const auto events = harness.Events(9);
  CHECK(std::count_if(events.begin(), events.end(), [](const std::string& event) {
          return Has(event,
                     "\n3 failures in a row without a rollout: given up, and tried again only "
                     "every 1.5 s");
        }) == 1);
  harness.End();
}

Plan FailsToOpen(int, int) {
  Plan plan;
  plan.fails = Plan::kOpen;
  return plan;
}

// Is skipped by default, because it waits for 4 seconds. --no-skip runs it.
TEST_CASE("pool: the back-off goes up to 1.5 seconds" * doctest::skip()) {
  PoolHarness harness(1, Sizes(), FailsToOpen);
  Await([&] { return harness.transport->births(0).size() == 8; });
  const auto births = harness.transport->births(0);
  CHECK(births[7] - births[6] >= milliseconds(750));
  CHECK(births[7] - births[6] < milliseconds(2500));
  harness.End();
}

TEST_CASE("pool: actors that failed together do not come back together") {
  constexpr int kActors = 16;
  PoolHarness harness(kActors, Sizes(), FailsToOpen);
  std::vector<Clock::duration> gaps;  // 100 to 200 ms
  for (int a = 0; a < kActors; ++a) {
    Await([&] { return harness.transport->births(a).size() >= 3; });
    const auto births = harness.transport->births(a);
    gaps.push_back(births[2] - births[1]);
  }
  const auto [shortest, longest] = std::minmax_element(gaps.begin(), gaps.end());
  CHECK(*longest - *shortest > milliseconds(20));
  harness.End();
}

}  // namespace
}  // namespace torchbeast
