// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actor_times.h"
#include "batching_queue.h"
#include "mutex.h"
#include "transport.h"

namespace torchbeast {

inline std::string InSeconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

// Watches the stream of every actor: whether it is connected, what went wrong, and how long it has
// waited. A thread of the monitor cancels streams that wait for longer than their timeout. Actors
// also account for their time here, in times().
//
//   Close  cancels all streams. From then on, a Registration throws Closed, and Report has no
//          effect. Calls of Sleep, also those that wait, return false. Close may be called again.
//
// Any thread may call anything, but an actor's Wait is for its own thread only. It comes with every
// row, and so it takes no lock. Lock order: first mutex_, then a Stream's own.
class StreamMonitor {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Activity = ActorTimes::Activity;

  struct Status {
    std::string address;
    bool opening = false;    // whether its server has described itself, and now opens environments
    bool connected = false;  // whether it has answered an action since it was opened
    int64_t failures = 0;
    std::string last_error;  // empty if there was none
  };

 private:
  // What the watching thread must know of an actor's Wait. Only the actor's thread writes it.
  struct alignas(64) Deadline {  // on a cache line that no other actor writes to
    std::atomic<Clock::time_point> time{Clock::time_point::max()};
    std::atomic<Milliseconds> timeout{};  // the Wait's timeout, which ends at `time`
  };

 public:
  // The monitor looks for streams that are late once every `period`.
  StreamMonitor(const std::vector<std::string>& addresses, Milliseconds period)
      : actors_(addresses.size()),
        times_(addresses.size()),
        deadlines_(addresses.size()),
        period_(period) {
    for (size_t i = 0; i < addresses.size(); ++i) actors_[i].status.address = addresses[i];
    thread_ = std::thread([this] { Watch(); });
  }
  StreamMonitor(const StreamMonitor&) = delete;
  StreamMonitor& operator=(const StreamMonitor&) = delete;
  ~StreamMonitor() {
    Close();
    thread_.join();
  }

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

  ActorTimes& times() { return times_; }
  const ActorTimes& times() const { return times_; }

  // Returns a status for each of the addresses.
  std::vector<Status> status() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    std::vector<Status> all;
    for (const Actor& actor : actors_) all.push_back(actor.status);
    return all;
  }

  // Returns what was reported since the last call, oldest first: "actor NUMBER, ADDRESS: CODE:
  // text". If nobody takes the reports, the newest 1000 are kept.
  std::vector<std::string> TakeEvents() EXCLUDES(mutex_) {
    std::deque<std::string> events;
    {
      Lock lock(mutex_);
      events.swap(events_);
    }
    return {events.begin(), events.end()};
  }

  void SetOpening(size_t actor) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    actors_[actor].status.opening = true;
  }

  void SetConnected(size_t actor) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    actors_[actor].status.opening = false;
    actors_[actor].status.connected = true;
  }

  // Reports the error that ended the actor's stream. A stream that was late is reported as such.
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

  // Waits for `time`. Returns false, and at once, if the monitor is closed.
  bool Sleep(Milliseconds time) EXCLUDES(mutex_) {
    const Clock::time_point end = Clock::now() + time;
    Lock lock(mutex_);
    while (!closed_ && Clock::now() < end) wake_.WaitUntil(mutex_, end);
    return !closed_;
  }

  // While it lives, the monitor can cancel the actor's stream. The constructor throws Closed if the
  // monitor is closed.
  class Registration {
   public:
    Registration(StreamMonitor& monitor, size_t i, Stream& stream) : monitor_(monitor), i_(i) {
      Lock lock(monitor.mutex_);
      if (monitor.closed_) throw Closed("the pool is closed");
      monitor.actors_[i].stream = &stream;
      monitor.actors_[i].missed.reset();
    }
    ~Registration() {
      Lock lock(monitor_.mutex_);
      monitor_.actors_[i_].stream = nullptr;
      monitor_.actors_[i_].status.opening = false;
      monitor_.actors_[i_].status.connected = false;
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    StreamMonitor& monitor_;
    const size_t i_;
  };

  // While it lives, the actor waits: the time counts as the activity's, and the actor's stream is
  // cancelled when `timeout` is over. An actor has one Wait at a time.
  class Wait {
   public:
    Wait(StreamMonitor& monitor, size_t i, Activity activity,
         Milliseconds timeout = Milliseconds::max())
        : times_(monitor.times_), deadline_(monitor.deadlines_[i]), i_(i), activity_(activity) {
      deadline_.timeout = timeout;
      deadline_.time = After(start_, timeout);
    }
    ~Wait() {
      deadline_.time = Clock::time_point::max();
      const double time = std::chrono::duration<double>(Clock::now() - start_).count();
      const double other = std::min(other_seconds_, time);
      times_.AddSeconds(i_, other_, other);
      times_.AddSeconds(i_, activity_, time - other);
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    // Counts `seconds` of the wait, at most all of it, as another activity's. What is negative or
    // not finite counts as 0.
    void Assign(Activity other, double seconds) {
      other_ = other;
      other_seconds_ = std::isfinite(seconds) ? std::max(seconds, 0.0) : 0.0;
    }
    // Counts the wait until `end` as another activity's.
    void AssignUntil(Clock::time_point end, Activity other) {
      Assign(other, std::chrono::duration<double>(end - start_).count());
    }

   private:
    ActorTimes& times_;
    Deadline& deadline_;
    const size_t i_;
    const Activity activity_;
    const Clock::time_point start_ = Clock::now();
    Activity other_ = activity_;
    double other_seconds_ = 0;
  };

 private:
  static constexpr size_t kMaxEvents = 1000;
  static constexpr std::chrono::seconds kSuspended{5};

  struct Actor {
    Status status;
    Stream* stream = nullptr;            // owned by the actor's thread
    std::optional<Milliseconds> missed;  // the timeout for which the stream was cancelled
  };

  void Watch() EXCLUDES(mutex_) {
    Lock lock(mutex_);
    Clock::time_point last_look = Clock::now(), earliest_start = last_look;
    while (!closed_) {
      const Clock::time_point now = Clock::now();
      // After so long a time without a look, the whole process was suspended. Then all timeouts
      // start anew, because the servers are not to blame.
      if (now - last_look > kSuspended) earliest_start = now;
      last_look = now;
      for (size_t i = 0; i < actors_.size(); ++i) {
        Actor& actor = actors_[i];
        const Milliseconds timeout = deadlines_[i].timeout.load();
        const Clock::time_point deadline =
            std::max(deadlines_[i].time.load(), After(earliest_start, timeout));
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
  std::deque<std::string> events_ GUARDED_BY(mutex_);  // what TakeEvents returns
  bool closed_ GUARDED_BY(mutex_) = false;
  ActorTimes times_;
  std::vector<Deadline> deadlines_;  // of each actor
  const Milliseconds period_;
  std::thread thread_;
};

}  // namespace torchbeast
