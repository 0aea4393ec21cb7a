// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batching_queue.h"
#include "mutex.h"
#include "transport.h"

namespace torchbeast {

// Knows of every actor's stream whether it lives, what went wrong, and how long it has waited.
// A thread of its own cancels streams that wait for too long. Any thread may call anything.
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
  enum Activity { kEnvironment, kInference, kQueue };  // what actors wait for

  // `period`: how often it looks for streams that are late.
  Monitor(const std::vector<std::string>& addresses, std::chrono::milliseconds period)
      : actors_(addresses.size()), period_(period) {
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

  // What happened since the last call, oldest first: "ADDRESS: CODE: text".
  std::vector<std::string> TakeEvents() EXCLUDES(mutex_) {
    std::deque<std::string> events;
    {
      Lock lock(mutex_);
      events.swap(events_);
    }
    return {events.begin(), events.end()};
  }

  // What all actors' seconds went to, by Activity.
  std::array<double, 3> seconds() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    return seconds_;
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
    if (actor.late) error = "DEADLINE_EXCEEDED: the server took too long for one answer";
    actor.status.last_error = error;
    ++actor.status.failures;
    events_.push_back(actor.status.address + ": " + error);
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
      monitor.actors_[i].late = false;
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
  // `timeout` is over.
  class Wait {
   public:
    Wait(Monitor& monitor, size_t i, Activity activity,
         std::chrono::milliseconds timeout = std::chrono::milliseconds::max())
        : monitor_(monitor), i_(i), activity_(activity) {
      if (timeout == std::chrono::milliseconds::max()) return;
      Lock lock(monitor.mutex_);
      monitor.actors_[i].deadline = After(start_, timeout);
    }
    ~Wait() {
      const std::chrono::duration<double> time = Clock::now() - start_;
      Lock lock(monitor_.mutex_);
      monitor_.actors_[i_].deadline = Clock::time_point::max();
      monitor_.seconds_[activity_] += time.count();
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Monitor& monitor_;
    const size_t i_;
    const Activity activity_;
    const Clock::time_point start_ = Clock::now();
  };

 private:
  static constexpr size_t kMaxEvents = 1000;  // kept if nobody takes them

  struct Actor {
    Status status;
    Stream* stream = nullptr;  // to cancel; the actor's thread owns it
    Clock::time_point deadline = Clock::time_point::max();
    bool late = false;  // cancelled for that
  };

  void Watch() EXCLUDES(mutex_) {
    Lock lock(mutex_);
    while (!closed_) {
      const Clock::time_point now = Clock::now();
      for (Actor& actor : actors_) {
        if (now < actor.deadline || actor.stream == nullptr || actor.late) continue;
        actor.late = true;
        actor.stream->Cancel();
      }
      wake_.WaitUntil(mutex_, now + period_);
    }
  }

  mutable Mutex mutex_;
  Condition wake_;
  std::vector<Actor> actors_ GUARDED_BY(mutex_);
  std::deque<std::string> events_ GUARDED_BY(mutex_);
  std::array<double, 3> seconds_ GUARDED_BY(mutex_) = {};
  bool closed_ GUARDED_BY(mutex_) = false;
  const std::chrono::milliseconds period_;
  std::thread thread_;
};

}  // namespace torchbeast
