// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "stream_monitor.h"
#include "transport.h"

namespace torchbeast {

// How long one actor waits after a stream failed, before it opens the next one. One thread uses it.
//
// The waits double from failure to failure, up to a limit. If a server answers, but
// `failure_budget` streams in a row end without a rollout, then all further waits last for `rest`.
// Streams whose server was away do not count.
class Backoff {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Backoff(int failure_budget, Milliseconds rest) : failure_budget_(failure_budget), rest_(rest) {}

  // A rollout is complete: the next failure is the first one again.
  void Reset() {
    wait_ = kFirst;
    failures_ = 0;
  }

  // Counts a failure. When it uses up the budget, returns a line that says so, and otherwise "".
  std::string Count(const StreamError& error) {
    if (error.is_away() || ++failures_ < failure_budget_) return "";
    wait_ = rest_;
    if (failures_ > failure_budget_) return "";  // was said before
    return "\n" + std::to_string(failures_) +
           " failures in a row without a rollout: given up, and tried again only every " +
           InSeconds(rest_);
  }

  // Returns the time to wait, and makes the next one longer.
  Milliseconds Next() {
    const Milliseconds longer = std::min(2 * wait_, kLongest);
    const auto time = std::exchange(wait_, longer).count();
    if (time >= rest_.count()) return rest_;
    return Milliseconds(std::uniform_int_distribution(time / 2, time)(random_));
  }

 private:
  // When a server comes back, all its streams are open within 5 seconds. That is the time of an
  // attempt to connect that began too early (kConnectMs in grpc_transport.cc), the longest wait,
  // and the time to open. Each wait has a random length, from half of these on, so that a server's
  // actors do not all come at once.
  static constexpr Milliseconds kFirst{100}, kLongest{1500};

  const int failure_budget_;
  const Milliseconds rest_;
  Milliseconds wait_ = kFirst;
  int failures_ = 0;  // since the last rollout, of a server that answered
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace torchbeast
