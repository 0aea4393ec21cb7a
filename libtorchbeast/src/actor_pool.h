// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "array.h"
#include "batching_queue.h"
#include "dynamic_batcher.h"
#include "monitor.h"
#include "mutex.h"
#include "rollout.h"
#include "transport.h"

namespace torchbeast {

// Threads that play: each holds one stream to a server and turns its Steps into rollouts.
//
//   row t = Step; its outputs, the action among them, from the batcher; the action back to the
//   server; whole rollouts of T+1 rows, with the recurrent state given at row 0, to the queue.
//
// The recurrent state between two rows is kept here. The network alone decides where to reset it:
// it sees `done`.
//
// A stream that fails, for whatever reason, loses its partial rollout, is reported by TakeEvents,
// and is opened again after a back-off: a new stream, a new episode, the initial state. One whose
// server does answer, but fails `failure_budget` times in a row without a rollout, is given up:
// opened again after `rest` only, as long as that goes on. Servers that are away do not count. Only
// outputs that do not fit the contract (`action` as the Spec has it, [1, N, ...], the same names
// and shapes always) end the whole pool, because nothing else would help: TakeEvents then throws
// what the first thread met.
//
//   Close  may be called twice. It closes queue and batcher too, because threads may be waiting in
//          them, cancels all streams and joins all threads.
class ActorPool {
 public:
  struct Options {
    Spec spec;                  // what every server has to offer, but N
    int64_t unroll_length = 1;  // T
    Arrays initial_core_state;  // [layers, 1, ...]; the same for every environment
    std::chrono::milliseconds step_timeout{60'000};    // for a Step
    std::chrono::milliseconds reset_timeout{300'000};  // ... the first, of environments being made
    // With the back-off it lasts longer than a server keeps the places of a learner that was lost.
    int failure_budget = 30;
    std::chrono::milliseconds rest{600'000};
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
    } catch (const std::system_error&) {  // the system gives no more threads
      Close();
      throw;
    }
  }
  ActorPool(const ActorPool&) = delete;
  ActorPool& operator=(const ActorPool&) = delete;
  ~ActorPool() { Close(); }

  void Close() EXCLUDES(joining_) {
    monitor_.Close();
    batcher_->Close();
    queue_->Close();
    Lock lock(joining_);
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  std::vector<Monitor::Status> status() const { return monitor_.status(); }
  Monitor::Seconds seconds() const { return monitor_.seconds(); }
  // How long it took from a row's arrival to its actions being sent: how many rows, by
  // Monitor::PlaceOf.
  std::vector<int64_t> latencies() const { return monitor_.latencies(); }

  std::vector<std::string> TakeEvents() EXCLUDES(failing_) {
    {
      Lock lock(failing_);
      if (!failure_.empty()) throw std::runtime_error(failure_);
    }
    return monitor_.TakeEvents();
  }

 private:
  using Milliseconds = std::chrono::milliseconds;
  // A server that comes back has its streams within 5 seconds: a connection that was begun too
  // early (kConnectMs in grpc_transport.cc), the longest back-off, and the time to open. Waits are
  // of random length, half of these at least, so that all actors of a server do not come at once.
  static constexpr Milliseconds kFirstBackoff{100}, kLongestBackoff{1500};
  static constexpr Milliseconds kLongestPeriod{250};

  // Of one stream, since its last whole rollout.
  struct Trouble {
    Milliseconds backoff = kFirstBackoff;
    int failures = 0;  // of a server that answers
  };

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

  void Run(size_t i, const std::string& address) {
    Trouble trouble;
    std::minstd_rand random(std::random_device{}());
    do {
      try {
        const std::unique_ptr<Stream> stream = transport_->NewStream(address);
        const Monitor::Registration registration(monitor_, i, *stream);
        Play(i, *stream, &trouble);
      } catch (const Closed&) {
        return;
      } catch (const StreamError& error) {
        monitor_.Report(i, error.what() + Judge(error, &trouble));
      } catch (const Unanswered& error) {
        monitor_.Report(i, std::string("ABORTED: ") + error.what());
      } catch (const std::exception& error) {
        Abort(error.what());
        return;
      }
    } while (monitor_.Sleep(Pause(&trouble, &random)));
  }

  // How long to wait before a stream is opened again.
  Milliseconds Pause(Trouble* trouble, std::minstd_rand* random) const {
    const Milliseconds longer = std::min(2 * trouble->backoff, kLongestBackoff);
    const auto time = std::exchange(trouble->backoff, longer).count();
    if (time >= options_.rest.count()) return options_.rest;
    return Milliseconds(std::uniform_int_distribution(time / 2, time)(*random));
  }

  // Makes the back-off a long one if the stream has used up its budget; what to say when it has.
  std::string Judge(const StreamError& error, Trouble* trouble) const {
    if (error.is_away() || ++trouble->failures < options_.failure_budget) return "";
    trouble->backoff = options_.rest;
    if (trouble->failures > options_.failure_budget) return "";  // it was said
    return "\n" + std::to_string(trouble->failures) +
           " failures in a row without a rollout: given up, and tried again only every " +
           InSeconds(options_.rest);
  }

  // One life of one batch of environments; ends with an exception.
  void Play(size_t i, Stream& stream, Trouble* trouble) {
    const int64_t T = options_.unroll_length, N = Open(i, stream);
    Arrays state = Repeat(options_.initial_core_state, N);  // given to the network at the next row
    Arrays state_at_0 = Copy(state);                        // ... at row 0 of the rollout
    const Array actions = options_.spec.MakeActions(N);     // the newest; written at row 0
    Rollout rollout(options_.spec, N, T);
    PlayRow(i, stream, 0, options_.reset_timeout, &rollout, &state, actions);
    while (true) {
      Arrays state_at_T;
      for (int64_t t = 1; t <= T; ++t) {
        if (t == T) state_at_T = Copy(state);  // a network may change what it is given
        PlayRow(i, stream, t, options_.step_timeout, &rollout, &state, actions);
      }  // the environments step while a whole rollout is handed over
      Dict whole = rollout.Finish(state_at_0);
      rollout = rollout.Next();
      state_at_0 = std::move(state_at_T);
      *trouble = Trouble();
      const Monitor::Wait wait(monitor_, i, Monitor::kQueue);
      queue_->Enqueue(std::move(whole));
    }
  }

  // Row t: from the server into the rollout and to the network; its actions back to the server.
  void PlayRow(size_t i, Stream& stream, int64_t t, Milliseconds timeout, Rollout* rollout,
               Arrays* state, const Array& actions) {
    const StepView step = Read(i, stream, timeout);
    const Clock::time_point arrived = Clock::now();
    rollout->WriteStep(t, step, actions);
    if (t == 1) monitor_.SetConnected(i);
    Answer(i, *rollout, t, state, actions);
    Write(i, stream, actions);
    monitor_.CountLatency(i, Clock::now() - arrived);
  }

  // Opens the stream and returns its number of environments.
  int64_t Open(size_t i, Stream& stream) {
    const Monitor::Wait wait(monitor_, i, Monitor::kTransport, options_.reset_timeout);
    const Spec seen = stream.Open();
    if (!seen.Fits(options_.spec)) {
      throw StreamError("FAILED_PRECONDITION", "the server's environments: expected " +
                                                   options_.spec.describe() + "; seen " +
                                                   seen.describe());
    }
    if (seen.num_envs < 1 || seen.num_envs > batcher_->maximum()) {
      throw StreamError("FAILED_PRECONDITION", "environments a stream: expected 1 to " +
                                                   std::to_string(batcher_->maximum()) +
                                                   " (the largest inference batch), seen " +
                                                   std::to_string(seen.num_envs));
    }
    return seen.num_envs;
  }

  StepView Read(size_t i, Stream& stream, Milliseconds timeout) {
    Monitor::Wait wait(monitor_, i, Monitor::kTransport, timeout);
    const StepView step = stream.Read();
    wait.Assign(Monitor::kEnvironment, step.environment_seconds);
    return step;
  }

  void Write(size_t i, Stream& stream, const Array& actions) {
    const Monitor::Wait wait(monitor_, i, Monitor::kTransport, options_.step_timeout);
    stream.Write(actions);
  }

  Exchange Ask(size_t i, Exchange inputs) {
    Monitor::Wait wait(monitor_, i, Monitor::kInference);
    Clock::time_point taken;
    Exchange answer = batcher_->Compute(std::move(inputs), &taken);
    wait.AssignUntil(taken, Monitor::kBatching);
    return answer;
  }

  // Asks the network about row t, and keeps its outputs, actions and next state.
  void Answer(size_t i, Rollout& rollout, int64_t t, Arrays* state, const Array& actions) {
    Exchange answer = Ask(i, {rollout.StepAt(t), *state});
    CheckState(*state, answer.core_state);
    *state = std::move(answer.core_state);
    const Array* action = Find(answer.arrays, "action");
    if (action == nullptr || !(action->dtype() == actions.dtype()) ||
        action->shape() != actions.shape()) {
      throw std::invalid_argument("outputs: expected action " + actions.describe() + ", seen " +
                                  (action ? action->describe() : "none"));
    }
    std::memcpy(actions.data(), action->data(), actions.bytes());
    CheckActions(actions);
    rollout.WriteOutputs(t, answer.arrays);
  }

  void CheckActions(const Array& actions) const {
    const Shape& sizes = options_.spec.action_sizes;
    const int64_t count = NumElements(actions.shape());
    for (int64_t i = 0; i < count && actions.dtype() == kFloat32; ++i) {
      const float seen = actions.as<float>()[i];
      if (!std::isfinite(seen)) {
        throw std::invalid_argument("outputs: expected finite actions, seen " +
                                    std::to_string(seen));
      }
    }
    for (int64_t i = 0; i < count && actions.dtype() == kInt64; ++i) {
      const int64_t seen = actions.as<int64_t>()[i], number = sizes[i % sizes.size()];
      if (seen < 0 || seen >= number) {
        throw std::invalid_argument("outputs: expected actions from 0 to " +
                                    std::to_string(number - 1) + ", seen " + std::to_string(seen));
      }
    }
  }

  static void CheckState(const Arrays& before, const Arrays& after) {
    bool same = before.size() == after.size();
    for (size_t i = 0; same && i < before.size(); ++i) {
      same = before[i].dtype() == after[i].dtype() && before[i].shape() == after[i].shape();
    }
    if (same) return;
    const auto describe = [](const Arrays& state) {
      std::string text = "(";
      for (const Array& array : state) text += (text.size() > 1 ? ", " : "") + array.describe();
      return text + ")";
    };
    throw std::invalid_argument("core_state: expected " + describe(before) +
                                ", as it was before, seen " + describe(after));
  }

  static Arrays Copy(const Arrays& state) {
    Arrays copies;
    for (const Array& array : state) {
      copies.push_back(Array::Empty(array.dtype(), array.shape()));
      if (array.bytes() > 0) std::memcpy(copies.back().data(), array.data(), array.bytes());
    }
    return copies;
  }

  // N times the only column.
  static Arrays Repeat(const Arrays& state, int64_t N) {
    Arrays repeated;
    for (const Array& array : state) {
      Shape shape = array.shape();
      shape[1] = N;
      repeated.push_back(Array::Empty(array.dtype(), shape));
      for (int64_t n = 0; n < N; ++n) CopyColumns(array, 0, 1, repeated.back(), n);
    }
    return repeated;
  }

  // The pool cannot go on: all threads, and those that wait for its rollouts, see Closed.
  void Abort(const std::string& failure) EXCLUDES(failing_) {
    {
      Lock lock(failing_);
      if (failure_.empty()) failure_ = failure;
    }
    monitor_.Close();
    batcher_->Close();
    queue_->Close();
  }

  const Options options_;
  const std::shared_ptr<BatchingQueue> queue_;
  const std::shared_ptr<DynamicBatcher> batcher_;
  const std::shared_ptr<Transport> transport_;
  Monitor monitor_;
  Mutex failing_;
  std::string failure_ GUARDED_BY(failing_);  // of the first thread that could not go on
  Mutex joining_;                             // protects the joining of threads_
  std::vector<std::thread> threads_;
};

}  // namespace torchbeast
