// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <deque>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batching_queue.h"
#include "mutex.h"
#include "transport.h"

namespace torchbeast {

inline std::string InSeconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

// Knows of every actor's stream whether it lives, what went wrong, and how long it has waited; and
// what the actors' time goes to. A thread of its own cancels streams that wait for too long.
//
// Any thread may call anything, but Wait and CountLatency are for the actor's own thread. These
// come with every row, and take no lock.
//
// Lock order: mutex_, then a Stream's own.
class Monitor {
 public:
  struct Status {
    std::string address;
    bool connected = false;  // has answered an Action since it was opened last
    int64_t failures = 0;
    std::string last_error;  // empty if there was none
  };
  enum Activity {  // what actors wait for
    kEnvironment,  // the environments' step, as their server says
    kTransport,    // the rest of the time until the server's answer is there
    kBatching,     // until a thread takes the row to answer it
    kInference,    // ... and has answered
    kQueue,        // the learner
  };
  using Seconds = std::array<double, 5>;  // by Activity

  static constexpr size_t kLatencies = 240;
  // Where a latency is counted: 8 places for each doubling, from 1 microsecond on.
  static size_t PlaceOf(std::chrono::duration<double> latency) {
    const double place = std::floor(8 * std::log2(latency.count() / 1e-6));
    return place > 0 ? static_cast<size_t>(std::min<double>(place, kLatencies - 1)) : 0;
  }

 private:
  // What an actor's thread alone writes.
  struct alignas(64) Account {
    std::atomic<Clock::time_point> deadline{Clock::time_point::max()};  // of its Wait
    std::atomic<std::chrono::milliseconds> timeout{};                   // ... which so began
    std::array<std::atomic<double>, std::tuple_size<Seconds>::value> seconds = {};
    std::array<std::atomic<int64_t>, kLatencies> latencies = {};
  };

 public:
  // `period`: how often it looks for streams that are late.
  Monitor(const std::vector<std::string>& addresses, std::chrono::milliseconds period)
      : actors_(addresses.size()), accounts_(addresses.size()), period_(period) {
    for (size_t i = 0; i < addresses.size(); ++i) actors_[i].status.address = addresses[i];
    thread_ = std::thread([this] { Watch(); });
  }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  ~Monitor() {
    Close();
    thread_.join();
  }

  // Cancels all streams, now and later; wakes those that back off.
  void Close() EXCLUDES(mutex_) {
    {
      Lock lock(mutex_);
      closed_ = true;
      for (Actor& actor : actors_) {
        if (actor.stream != nullptr) actor.stream->Cancel();
      }
    }
    wake_.NotifyAll();
  }

  // One for each address given.
  std::vector<Status> status() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    std::vector<Status> all;
    for (const Actor& actor : actors_) all.push_back(actor.status);
    return all;
  }

  // What happened since the last call, oldest first: "actor NUMBER, ADDRESS: CODE: text".
  std::vector<std::string> TakeEvents() EXCLUDES(mutex_) {
    std::deque<std::string> events;
    {
      Lock lock(mutex_);
      events.swap(events_);
    }
    return {events.begin(), events.end()};
  }

  // What all actors' seconds went to.
  Seconds seconds() const {
    Seconds sums = {};
    for (const Account& account : accounts_) {
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += account.seconds[k];
    }
    return sums;
  }

  // How often a latency was counted, by PlaceOf.
  std::vector<int64_t> latencies() const {
    std::vector<int64_t> sums(kLatencies);
    for (const Account& account : accounts_) {
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += account.latencies[k];
    }
    return sums;
  }

  void CountLatency(size_t actor, std::chrono::duration<double> latency) {
    Add(accounts_[actor].latencies[PlaceOf(latency)], int64_t{1});
  }

  void SetConnected(size_t actor) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    actors_[actor].status.connected = true;
  }

  // The actor's stream ended with this.
  void Report(size_t i, std::string error) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    if (closed_) return;
    Actor& actor = actors_[i];
    if (actor.missed) {
      error = "DEADLINE_EXCEEDED: the server took too long for one answer, more than " +
              InSeconds(*actor.missed);
    }
    actor.status.last_error = error;
    ++actor.status.failures;
    events_.push_back("actor " + std::to_string(i) + ", " + actor.status.address + ": " + error);
    if (events_.size() > kMaxEvents) events_.pop_front();
  }

  // Waits for as long; false if it is closed meanwhile.
  bool Sleep(std::chrono::milliseconds time) EXCLUDES(mutex_) {
    const Clock::time_point end = Clock::now() + time;
    Lock lock(mutex_);
    while (!closed_ && Clock::now() < end) wake_.WaitUntil(mutex_, end);
    return !closed_;
  }

  // While it lives, the actor's stream can be cancelled. Throws Closed.
  class Registration {
   public:
    Registration(Monitor& monitor, size_t i, Stream& stream) : monitor_(monitor), i_(i) {
      Lock lock(monitor.mutex_);
      if (monitor.closed_) throw Closed("the pool is closed");
      monitor.actors_[i].stream = &stream;
      monitor.actors_[i].missed.reset();
    }
    ~Registration() {
      Lock lock(monitor_.mutex_);
      monitor_.actors_[i_].stream = nullptr;
      monitor_.actors_[i_].status.connected = false;
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    Monitor& monitor_;
    const size_t i_;
  };

  // While it lives, its time is booked under the activity, and the actor's stream is cancelled once
  // `timeout` is over. One at a time for each actor.
  class Wait {
   public:
    Wait(Monitor& monitor, size_t i, Activity activity,
         std::chrono::milliseconds timeout = std::chrono::milliseconds::max())
        : account_(monitor.accounts_[i]), activity_(activity) {
      account_.timeout = timeout;
      account_.deadline = After(start_, timeout);
    }
    ~Wait() {
      account_.deadline = Clock::time_point::max();
      const double time = std::chrono::duration<double>(Clock::now() - start_).count();
      const double other = std::min(other_seconds_, time);
      Add(account_.seconds[other_], other);
      Add(account_.seconds[activity_], time - other);
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    // So many seconds of it, at most all, are booked under another activity. Ignores what is no
    // number of seconds.
    void Assign(Activity other, double seconds) {
      other_ = other;
      other_seconds_ = std::isfinite(seconds) ? std::max(seconds, 0.0) : 0.0;
    }
    void AssignUntil(Clock::time_point end, Activity other) {
      Assign(other, std::chrono::duration<double>(end - start_).count());
    }

   private:
    Account& account_;
    const Activity activity_;
    const Clock::time_point start_ = Clock::now();
    Activity other_ = activity_;
    double other_seconds_ = 0;
  };

 private:
  static constexpr size_t kMaxEvents = 1000;  // kept if nobody takes them
  static constexpr std::chrono::seconds kStopped{5};

  struct Actor {
    Status status;
    Stream* stream = nullptr;                         // to cancel; the actor's thread owns it
    std::optional<std::chrono::milliseconds> missed;  // the timeout that it was cancelled for
  };

  template <class T>
  static void Add(std::atomic<T>& sum, T value) {  // only one thread does
    sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }

  void Watch() EXCLUDES(mutex_) {
    Lock lock(mutex_);
    Clock::time_point looked = Clock::now(), began = looked;
    while (!closed_) {
      const Clock::time_point now = Clock::now();
      // Whoever looks again after so long was stopped itself: then nobody's time counts before now.
      if (now - looked > kStopped) began = now;
      looked = now;
      for (size_t i = 0; i < actors_.size(); ++i) {
        Actor& actor = actors_[i];
        const std::chrono::milliseconds timeout = accounts_[i].timeout.load();
        const Clock::time_point deadline =
            std::max(accounts_[i].deadline.load(), After(began, timeout));
        if (now < deadline || actor.stream == nullptr || actor.missed) continue;
        actor.missed = timeout;
        actor.stream->Cancel();
      }
      wake_.WaitUntil(mutex_, now + period_);
    }
  }

  mutable Mutex mutex_;
  Condition wake_;
  std::vector<Actor> actors_ GUARDED_BY(mutex_);
  std::deque<std::string> events_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
  std::vector<Account> accounts_;
  const std::chrono::milliseconds period_;
  std::thread thread_;
};

}  // namespace torchbeast
