// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "dynamic_batcher.h"
#include "net_io.h"
#include "rollout.h"
#include "spec.h"
#include "stream_monitor.h"
#include "transport.h"

namespace torchbeast {

// An actor's conversation over one stream, from the reset of the environments to the stream's end.
//
//   Row t: reads a Step from the server, gets the network's outputs for it from the batcher, and
//          sends `action`, which is one of the outputs, back to the server.
//
// The session keeps the recurrent state between two rows. Only the network resets it, where it sees
// `done`.
//
// The thread that owns the session waits in its constructor and in PlayRollout. Both throw
//   StreamError            if the stream ends, or if the server breaks the protocol,
//   Closed                 if the batcher is closed,
//   Unanswered             if the batch was dropped without an answer, and
//   std::invalid_argument  if the network's outputs break the contract.
// No method may be called after that.
class StreamSession {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Options {
    Spec spec;                  // what a server must have; num_envs 0: any number
    int64_t unroll_length = 1;  // T
    Arrays initial_core_state;  // [layers, 1, ...]; every environment begins with it
    Milliseconds step_timeout{60'000};
    Milliseconds reset_timeout{300'000};  // for the first Step, for which environments are made
    int64_t max_rollout_bytes = int64_t{1} << 31;  // of one stream's environments together
  };

  // Opens the stream and plays row 0. Everything that it is given must outlive it.
  StreamSession(const Options& options, size_t actor, Stream& stream, StreamMonitor& monitor,
                DynamicBatcher& batcher)
      : options_(options),
        actor_(actor),
        stream_(stream),
        monitor_(monitor),
        batcher_(batcher),
        num_envs_(Open()),
        state_(RepeatColumn(options.initial_core_state, num_envs_)),
        state_at_0_(Copy(state_)),
        actions_(options.spec.MakeActions(num_envs_)),
        rollout_(options.spec, num_envs_, options.unroll_length) {
    PlayRow(0, options.reset_timeout);
  }
  StreamSession(const StreamSession&) = delete;
  StreamSession& operator=(const StreamSession&) = delete;

  // Plays T rows, and returns the rollout that they complete: T+1 rows, and the recurrent state
  // that the network was given at row 0. The environments step while the caller uses it.
  Dict PlayRollout() {
    const int64_t T = options_.unroll_length;
    for (int64_t t = 1; t < T; ++t) PlayRow(t, options_.step_timeout);
    Arrays state_at_T = Copy(state_);  // a copy, because a network may change what it is given
    PlayRow(T, options_.step_timeout);
    Dict rollout = rollout_.Finish(state_at_0_);
    rollout_ = rollout_.Next();
    state_at_0_ = std::move(state_at_T);
    return rollout;
  }

 private:
  // Returns the number of environments.
  int64_t Open() {
    const StreamMonitor::Wait wait(monitor_, actor_, ActorTimes::kTransport,
                                   options_.reset_timeout);
    const Spec seen = stream_.Open();
    if (!seen.Fits(options_.spec)) {
      throw StreamError("FAILED_PRECONDITION", "the server's environments: expected " +
                                                   options_.spec.describe() + "; seen " +
                                                   seen.describe());
    }
    const int64_t expected = options_.spec.num_envs;  // 0: any
    if (expected != 0 && seen.num_envs != expected) {
      throw StreamError("FAILED_PRECONDITION",
                        "environments a stream: expected " + std::to_string(expected) +
                            ", as the first server has, seen " + std::to_string(seen.num_envs));
    }
    if (seen.num_envs < 1 || seen.num_envs > batcher_.maximum()) {
      throw StreamError("FAILED_PRECONDITION", "environments a stream: expected 1 to " +
                                                   std::to_string(batcher_.maximum()) +
                                                   " (the largest inference batch), seen " +
                                                   std::to_string(seen.num_envs));
    }
    CheckMemory(seen);
    monitor_.SetOpening(actor_);
    return seen.num_envs;
  }

  // Throws before anything is allocated for the stream's environments.
  void CheckMemory(const Spec& spec) const {
    int64_t column = (options_.unroll_length + 1) * spec.row_bytes();  // of a rollout
    for (const Array& state : options_.initial_core_state) column += state.bytes();
    const int64_t most = options_.max_rollout_bytes / column;
    if (spec.num_envs <= most) return;
    throw StreamError("RESOURCE_EXHAUSTED",
                      "environments a stream: expected at most " + std::to_string(most) +
                          ", whose rollouts fit into memory (" + std::to_string(column) +
                          " bytes each), seen " + std::to_string(spec.num_envs));
  }

  void PlayRow(int64_t t, Milliseconds timeout) {
    const StepView step = Read(timeout);
    const Clock::time_point arrived = Clock::now();
    rollout_.WriteStep(t, step, actions_);
    if (t == 1) monitor_.SetConnected(actor_);
    TakeOutputs(t, Infer({rollout_.StepAt(t), state_}));
    WriteActions();
    monitor_.times().CountLatency(actor_, Clock::now() - arrived);
  }

  StepView Read(Milliseconds timeout) {
    StreamMonitor::Wait wait(monitor_, actor_, ActorTimes::kTransport, timeout);
    const StepView step = stream_.Read();
    wait.Assign(ActorTimes::kEnvironment, step.environment_seconds);
    return step;
  }

  void WriteActions() {
    const StreamMonitor::Wait wait(monitor_, actor_, ActorTimes::kTransport, options_.step_timeout);
    stream_.Write(actions_);
  }

  NetIO Infer(NetIO inputs) {
    StreamMonitor::Wait wait(monitor_, actor_, ActorTimes::kInference);
    Clock::time_point taken;
    NetIO outputs = batcher_.Compute(std::move(inputs), &taken);
    wait.AssignUntil(taken, ActorTimes::kBatching);
    return outputs;
  }

  // Checks and keeps the network's outputs for row t.
  void TakeOutputs(int64_t t, NetIO outputs) {
    CheckState(state_, outputs.core_state);
    state_ = std::move(outputs.core_state);
    const Array* action = Find(outputs.arrays, "action");
    if (action == nullptr || !(action->dtype() == actions_.dtype()) ||
        action->shape() != actions_.shape()) {
      throw std::invalid_argument("outputs: expected action " + actions_.describe() + ", seen " +
                                  (action ? action->describe() : "none"));
    }
    std::memcpy(actions_.data(), action->data(), actions_.bytes());
    options_.spec.CheckActions(actions_);
    rollout_.WriteOutputs(t, outputs.arrays);
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

  const Options& options_;
  const size_t actor_;
  Stream& stream_;
  StreamMonitor& monitor_;
  DynamicBatcher& batcher_;
  const int64_t num_envs_;
  Arrays state_;         // what the network is given at the next row
  Arrays state_at_0_;    // what it was given at row 0 of the rollout
  const Array actions_;  // the newest ones; they are written into the same memory at every row
  Rollout rollout_;
};

}  // namespace torchbeast
