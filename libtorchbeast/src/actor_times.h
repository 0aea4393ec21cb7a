// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

namespace torchbeast {

// What the actors' time goes to, and how long their rows take.
//
// Any thread may read the sums. AddSeconds and CountLatency may be called by the actor's own thread
// only: they come with every row, and so they take no lock.
class ActorTimes {
 public:
  // What an actor waits for. The log's columns are named after kActivities.
  enum Activity {
    kEnvironment,   // the environments' step, as their server measured it
    kTransport,     // the rest of the time until the server's answer is there
    kBatching,      // until a batch takes the row
    kInference,     // from then until the network's answer is there
    kActorWaiting,  // until the learner's queue takes the rollout
  };
  static constexpr std::array kActivities = {"environment", "transport", "batching", "inference",
                                             "actor_waiting"};
  using Seconds = std::array<double, kActivities.size()>;  // by Activity
  static_assert(kActorWaiting + 1 == kActivities.size());

  static constexpr size_t kLatencyBins = 240;
  // Returns the histogram's bin of a latency. There are 8 bins for each doubling, from 1
  // microsecond on. The first and the last bin take what is beyond them.
  static size_t LatencyBin(std::chrono::duration<double> latency) {
    const double bin = std::floor(8 * std::log2(latency.count() / 1e-6));
    return bin > 0 ? static_cast<size_t>(std::min<double>(bin, kLatencyBins - 1)) : 0;
  }

  explicit ActorTimes(size_t actors) : actors_(actors) {}

  void AddSeconds(size_t actor, Activity activity, double seconds) {
    Add(actors_[actor].seconds[activity], seconds);
  }
  void CountLatency(size_t actor, std::chrono::duration<double> latency) {
    Add(actors_[actor].latencies[LatencyBin(latency)], int64_t{1});
  }

  // Returns the sums over all actors.
  Seconds seconds() const {
    Seconds sums = {};
    for (const Actor& actor : actors_) {
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += actor.seconds[k];
    }
    return sums;
  }

  // Returns the histogram of all actors' latencies.
  std::vector<int64_t> latencies() const {
    std::vector<int64_t> sums(kLatencyBins);
    for (const Actor& actor : actors_) {
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += actor.latencies[k];
    }
    return sums;
  }

 private:
  struct alignas(64) Actor {  // on cache lines that no other actor writes to
    std::array<std::atomic<double>, kActivities.size()> seconds = {};
    std::array<std::atomic<int64_t>, kLatencyBins> latencies = {};
  };

  // The addition need not be atomic as a whole, because only one thread adds to a sum.
  template <class T>
  static void Add(std::atomic<T>& sum, T value) {
    sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }

  std::vector<Actor> actors_;
};

}  // namespace torchbeast
