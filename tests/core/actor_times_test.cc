// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "actor_times.h"

#include <limits>

#include "testing.h"

namespace torchbeast {
namespace {

TEST_CASE("actor times: latencies are counted in 8 bins for each doubling from 1 us on") {
  const auto bin = [](double seconds) {
    return ActorTimes::LatencyBin(std::chrono::duration<double>(seconds));
  };
  CHECK(bin(1.0001e-6) == 0);
  CHECK(bin(2.0001e-6) == 8);
  CHECK(bin(1.9999e-6) == 7);
  CHECK(bin(1.0) == 159);  // 8 * log2(1e6) = 159.45
  CHECK(bin(1e3) == 239);
  for (double little : {0.0, -1.0, 1e-300, 0.9e-6}) CHECK(bin(little) == 0);
  CHECK(bin(std::numeric_limits<double>::infinity()) == 239);
  CHECK(bin(std::numeric_limits<double>::quiet_NaN()) == 0);
  ActorTimes times(2);
  CHECK(times.latencies() == std::vector<int64_t>(240));
  for (size_t i : {0, 1, 1}) times.CountLatency(i, std::chrono::microseconds(5));
  times.CountLatency(0, std::chrono::hours(1));
  std::vector<int64_t> expected(240);
  expected[18] = 3;  // 8 * log2(5) = 18.6
  expected[239] = 1;
  CHECK(times.latencies() == expected);
}

TEST_CASE("actor times: seconds are summed over the actors, by activity") {
  ActorTimes times(2);
  times.AddSeconds(0, ActorTimes::kBatching, 1);
  times.AddSeconds(0, ActorTimes::kActorWaiting, 0.25);
  times.AddSeconds(1, ActorTimes::kBatching, 2);
  CHECK(times.seconds() == ActorTimes::Seconds{0, 0, 3, 0, 0.25});
}

}  // namespace
}  // namespace torchbeast
