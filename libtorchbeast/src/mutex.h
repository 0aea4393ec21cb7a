// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// A mutex, a lock and a condition variable with annotations. With them, clang (-Wthread-safety)
// checks that every field marked GUARDED_BY is only used while its mutex is held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define THREAD_ANNOTATION(x) __attribute__((x))
#else
#define THREAD_ANNOTATION(x)
#endif
#define REQUIRES(mutex) THREAD_ANNOTATION(requires_capability(mutex))
#define EXCLUDES(mutex) THREAD_ANNOTATION(locks_excluded(mutex))
#ifndef GUARDED_BY  // Abseil, which comes with gRPC, defines it too, and in the same way.
#define GUARDED_BY(mutex) THREAD_ANNOTATION(guarded_by(mutex))
#endif

namespace torchbeast {

class THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class THREAD_ANNOTATION(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~Lock() THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

using Clock = std::chrono::steady_clock;

// Returns the time at which `timeout` from `start` is over. That is never for a timeout that is too
// long for the clock.
template <class Duration>
Clock::time_point After(Clock::time_point start, Duration timeout) {
  const bool countable = timeout < std::chrono::hours(24 * 365);
  return countable ? start + timeout : Clock::time_point::max();
}

// A condition variable. Its callers check their predicate in a loop of their own, so that clang
// sees that the predicate runs under the mutex.
class Condition {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) { condition_.wait(mutex); }
  void WaitUntil(Mutex& mutex, Clock::time_point time) REQUIRES(mutex) {
    condition_.wait_until(mutex, time);
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace torchbeast
