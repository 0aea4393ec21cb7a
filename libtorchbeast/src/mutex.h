// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// A mutex, its lock and its condition variable, annotated so that clang (-Wthread-safety) checks
// that every field marked GUARDED_BY is only touched with its mutex held.
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
#ifndef GUARDED_BY  // Abseil's, which comes with gRPC, is the same
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

// When `timeout` from `start` is over; never, for one that the clock cannot count.
template <class Duration>
Clock::time_point After(Clock::time_point start, Duration timeout) {
  const bool countable = timeout < std::chrono::hours(24 * 365);
  return countable ? start + timeout : Clock::time_point::max();
}

// Waiters loop over their predicate themselves, so that clang sees it run under the mutex.
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
