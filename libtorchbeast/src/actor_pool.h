// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "actor_times.h"
#include "array.h"
#include "backoff.h"
#include "batching_queue.h"
#include "dynamic_batcher.h"
#include "mutex.h"
#include "stream_monitor.h"
#include "stream_session.h"
#include "transport.h"

namespace torchbeast {

// The actors: threads that each hold one stream to a server, play StreamSessions over it, and hand
// whole rollouts to the queue.
//
// A stream that fails, for whatever reason, loses its partial rollout. TakeEvents reports it, and
// after a Backoff the actor opens a new stream, with a new episode and the initial state. A stream
// for which there is too little memory fails in the same way.
//
// Only outputs of the network that break the contract end the whole pool, because a new stream
// would not help: `action` must be as the Spec has it, and all outputs are [1, N, ...] and keep
// their names and shapes. TakeEvents then throws the error of the first thread that met one.
//
//   Close  closes the queue and the batcher too, because threads may wait in them. It cancels all
//          streams and joins all threads. Close may be called again, by any thread.
//
// Any thread may call anything.
class ActorPool {
 public:
  struct Options : StreamSession::Options {
    // For Backoff. So many failures, with the waits between them, take longer than a server needs
    // to notice that a learner is gone and to free the places of its streams.
    int failure_budget = 30;
    std::chrono::milliseconds rest{60'000};
  };

  ActorPool(Options options, std::shared_ptr<BatchingQueue> queue,
            std::shared_ptr<DynamicBatcher> batcher, std::shared_ptr<Transport> transport,
            const std::vector<std::string>& addresses)
      : options_(Checked(std::move(options), addresses)),
        queue_(std::move(queue)),
        batcher_(std::move(batcher)),
        transport_(std::move(transport)),
        monitor_(addresses,
                 std::clamp(options_.step_timeout / 4, Milliseconds(1), kLongestPeriod)) {
    threads_.reserve(addresses.size());
    try {
      for (size_t i = 0; i < addresses.size(); ++i) {
        threads_.emplace_back([this, i, address = addresses[i]] { Run(i, address); });
      }
    } catch (const std::system_error&) {  // the system allows no more threads
      Close();
      throw;
    }
  }
  ActorPool(const ActorPool&) = delete;
  ActorPool& operator=(const ActorPool&) = delete;
  ~ActorPool() { Close(); }

  void Close() EXCLUDES(joining_) {
    CloseAll();
    Lock lock(joining_);
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  std::vector<StreamMonitor::Status> status() const { return monitor_.status(); }
  ActorTimes::Seconds seconds() const { return monitor_.times().seconds(); }
  // The histogram, by ActorTimes::LatencyBin, of the time from a row's arrival until its actions
  // were sent.
  std::vector<int64_t> latencies() const { return monitor_.times().latencies(); }

  // Returns what went wrong since the last call, as StreamMonitor::TakeEvents does. Throws
  // std::runtime_error if the pool ended itself.
  std::vector<std::string> TakeEvents() EXCLUDES(failing_) {
    {
      Lock lock(failing_);
      if (!failure_.empty()) throw std::runtime_error(failure_);
    }
    return monitor_.TakeEvents();
  }

 private:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds kLongestPeriod{250};

  static Options Checked(Options options, const std::vector<std::string>& addresses) {
    if (addresses.empty()) throw std::invalid_argument("addresses: expected at least one");
    if (options.unroll_length < 1) {
      throw std::invalid_argument("unroll_length: expected at least 1, seen " +
                                  std::to_string(options.unroll_length));
    }
    if (options.step_timeout.count() <= 0 || options.reset_timeout.count() <= 0) {
      throw std::invalid_argument("step_timeout, reset_timeout: expected more than 0, seen " +
                                  std::to_string(options.step_timeout.count()) + " ms and " +
                                  std::to_string(options.reset_timeout.count()) + " ms");
    }
    for (const Array& state : options.initial_core_state) {
      if (state.columns() != 1) {
        throw std::invalid_argument("initial_core_state: expected one column, seen " +
                                    state.describe());
      }
    }
    return options;
  }

  // Actor i's thread.
  void Run(size_t i, const std::string& address) {
    Backoff backoff(options_.failure_budget, options_.rest);
    do {
      try {
        const std::unique_ptr<Stream> stream = transport_->NewStream(address);
        const StreamMonitor::Registration registration(monitor_, i, *stream);
        Play(i, *stream, &backoff);
      } catch (const Closed&) {
        return;
      } catch (const StreamError& error) {
        monitor_.Report(i, error.what() + backoff.Count(error));
      } catch (const std::bad_alloc&) {
        const StreamError error("RESOURCE_EXHAUSTED", "the learner has no memory for the stream");
        monitor_.Report(i, error.what() + backoff.Count(error));
      } catch (const Unanswered& error) {
        monitor_.Report(i, std::string("ABORTED: ") + error.what());
      } catch (const std::exception& error) {
        Abort(error.what());
        return;
      }
    } while (monitor_.Sleep(backoff.Next()));
  }

  // Plays over the stream until an exception ends it.
  void Play(size_t i, Stream& stream, Backoff* backoff) {
    StreamSession session(options_, i, stream, monitor_, *batcher_);
    while (true) {
      Dict rollout = session.PlayRollout();
      backoff->Reset();
      const StreamMonitor::Wait wait(monitor_, i, ActorTimes::kActorWaiting);
      queue_->Enqueue(std::move(rollout));
    }
  }

  // Ends the pool because of an error. All its threads, and those that wait for its rollouts, get
  // Closed.
  void Abort(const std::string& failure) EXCLUDES(failing_) {
    {
      Lock lock(failing_);
      if (failure_.empty()) failure_ = failure;
    }
    CloseAll();
  }

  void CloseAll() {
    monitor_.Close();
    batcher_->Close();
    queue_->Close();
  }

  const Options options_;
  const std::shared_ptr<BatchingQueue> queue_;
  const std::shared_ptr<DynamicBatcher> batcher_;
  const std::shared_ptr<Transport> transport_;
  StreamMonitor monitor_;
  Mutex failing_;
  std::string failure_ GUARDED_BY(failing_);  // the error of the first thread that ended the pool
  Mutex joining_;                             // held while threads_ are joined
  std::vector<std::thread> threads_;
};

}  // namespace torchbeast
