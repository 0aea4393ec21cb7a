// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Streams of a pool that fail, hang or send what is wrong, and the back-off after that.
#include <algorithm>
#include <cmath>
#include <new>
#include <set>

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

// rollout_test.cc has all that a Step can have wrong.
TEST_CASE("pool: a Step that is wrong ends its stream, and reaches no batch") {
  const auto cut_off = [](FakeStep* s) { s->view.observations.remove_suffix(1); };
  const auto not_finite = [](FakeStep* s) { s->reward[0] = INFINITY; };
  const std::vector<Wrong> wrongs = {
      {"observations: expected 34 bytes, seen 33", cut_off},
      {"reward: expected finite numbers, seen inf", not_finite},
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
      {"frame uint8[3] (a stack of frames)", [](Spec* spec) { spec->observations[2].stack = 3; }},
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
    if (a < 2)
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
  PoolHarness harness(5, sizes, [](int a, int life) {
    Plan plan = Good(1);
    if (a == 4 || life > 0) return plan;
    plan.hangs = a == 0 ? Plan::kOpen : a == 3 ? Plan::kWrite : Plan::kRead;
    plan.at = a == 1 ? 0 : 5;
    return plan;
  });
  Checker(harness).Run(4, 1, 1);
  harness.Events(4);
  for (int a = 0; a < 4; ++a) {
    const std::string event = Event(
        a, std::string("DEADLINE_EXCEEDED: the server took too long for one answer, more than ") +
               (a >= 2 ? "0.15 s" : "0.3 s"));
    CHECK_MESSAGE(std::count(harness.events.begin(), harness.events.end(), event) >= 1, event);
    CHECK(harness.transport->waited(a) >= (a >= 2 ? sizes.step_timeout : sizes.reset_timeout));
  }
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
  CHECK(std::min(gap(0), gap(1)) < sizes.rest);
  CHECK(gap(4) < sizes.rest);  // after a whole rollout
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

TEST_CASE("pool: the back-off doubles up to 1.5 seconds, begins again, and differs among actors") {
  std::set<milliseconds> firsts;
  for (int actor = 0; actor < 8; ++actor) {
    Backoff backoff(3, std::chrono::hours(1));
    for (int rollouts = 0; rollouts < 2; ++rollouts) {
      for (int most : {100, 200, 400, 800, 1500, 1500}) {
        const milliseconds wait = backoff.Next();
        CHECK(wait >= milliseconds(most / 2));
        CHECK(wait <= milliseconds(most));
        if (rollouts == 0 && most == 100) firsts.insert(wait);
      }
      backoff.Reset();
    }
  }
  CHECK(firsts.size() > 1);
}

}  // namespace
}  // namespace torchbeast
