// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Streams in memory whose environments count, and a network that counts too, so that every number
// of every rollout is known beforehand. A Plan says what goes wrong with a stream.
//
// Addresses are numbers: "0", "1", ... The streams to an address are numbered by their life: 0, 1,
// ... The Steps of a life are numbered by s, and s = 0 is the reset.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "decoder.h"
#include "dynamic_batcher.h"
#include "mutex.h"
#include "spec.h"
#include "testing.h"
#include "transport.h"

namespace torchbeast {

constexpr int64_t kActions = 7, kMaxFakeEnvs = 8, kForever = 1'000'000'000;

inline Spec CountingSpec(int64_t num_envs = 1) {
  return {
      num_envs,
      {{"count", kInt64, {}}, {"flags", kBool, {2}}, {"frame", kUInt8, {3}}, {"echo", kInt32, {}}},
      "discrete",
      {kActions},
      1,
      "Counting"};
}

// What environment n is expected to have at Step s of a life.
struct Expected {
  Expected(int address, int life, int64_t n, int64_t s)
      : s(s),
        count(((address * 1000 + life) * 10 + n) * 1'000'000 + s),
        length(3 + n % 3),
        position(s % length),
        done(position == 0),
        last(position == length - 1),
        terminated(last && n % 2 == 0),
        truncated(last && n % 2 == 1),
        reward(done ? 0.0f : static_cast<float>(s) + 0.5f),
        action((count / 3 + count) % kActions),
        // The recurrent state that the network is given here. One counts the calls since the
        // episode began, because the network resets it at `done`; at the first Step of a life it is
        // 7. The other counts the calls in this life, from 50 on.
        calls_in_episode(s == 0 ? 7 : (s - 1) % length + 1),
        calls(50 + s) {}

  int64_t s, count, length, position;
  bool done, last, terminated, truncated;
  float reward;
  int64_t action, calls_in_episode, calls;
};

inline Arrays InitialState() {
  return {Make<int64_t>({2, 1}, {7, 50}), Make<float>({1, 1, 2}, {50, -50})};
}

// The network. `calls` counts the columns of all its inputs.
inline NetIO CountingNet(const NetIO& inputs, std::atomic<int64_t>* calls) {
  const int64_t B = CommonColumns(inputs.arrays);
  const auto* count = Find(inputs.arrays, "count")->as<int64_t>();
  const auto* done = Find(inputs.arrays, "done")->as<bool>();
  const auto* state = inputs.core_state.at(0).as<int64_t>();
  const auto* floats = inputs.core_state.at(1).as<float>();
  NetIO outputs{{{"action", Array::Empty(kInt64, {1, B})},
                 {"logits", Array::Empty(kFloat32, {1, B, kActions})},
                 {"given", Array::Empty(kInt64, {1, B, 2})},
                 {"call", Array::Empty(kInt64, {1, B})}},
                {Array::Empty(kInt64, {2, B}), Array::Empty(kFloat32, {1, B, 2})}};
  const auto out = [&](int i) { return outputs.arrays[i].second; };
  for (int64_t b = 0; b < B; ++b) {
    Require(floats[2 * b] == state[B + b] && floats[2 * b + 1] == -state[B + b], "mixed states");
    out(0).as<int64_t>()[b] = (count[b] / 3 + count[b]) % kActions;
    for (int64_t a = 0; a < kActions; ++a) {
      out(1).as<float>()[b * kActions + a] = static_cast<float>(count[b] % 1000 * 10 + a);
    }
    out(2).as<int64_t>()[2 * b] = state[b];
    out(2).as<int64_t>()[2 * b + 1] = state[B + b];
    out(3).as<int64_t>()[b] = ++*calls;
    outputs.core_state[0].as<int64_t>()[b] = (done[b] ? 0 : state[b]) + 1;
    outputs.core_state[0].as<int64_t>()[B + b] = state[B + b] + 1;
    outputs.core_state[1].as<float>()[2 * b] = static_cast<float>(state[B + b] + 1);
    outputs.core_state[1].as<float>()[2 * b + 1] = static_cast<float>(-state[B + b] - 1);
  }
  // Overwrites its inputs, because a network may work in place.
  for (const Array& array : inputs.core_state) std::memset(array.data(), 0x55, array.bytes());
  return outputs;
}

// A Step, with its memory.
struct FakeStep {
  std::string observations;
  std::vector<float> reward, episode_return;
  std::vector<int32_t> episode_step;
  bool done[kMaxFakeEnvs], terminated[kMaxFakeEnvs], truncated[kMaxFakeEnvs],
      episode_over[kMaxFakeEnvs];
  StepView view;  // which a Plan may change to make the Step wrong

  FakeStep(int address, int life, int64_t N, int64_t s, const std::vector<int64_t>& actions) {
    std::string count, flags, frame, echo;
    const auto add = [](std::string* leaf, auto value) {
      leaf->append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    for (int64_t n = 0; n < N; ++n) {
      const Expected expected(address, life, n, s);
      add(&count, expected.count);
      add(&flags, s % 2 == 1);
      add(&flags, n % 2 == 1);
      for (int i = 0; i < 3; ++i) add(&frame, static_cast<uint8_t>(expected.count + i));
      add(&echo, static_cast<int32_t>(actions[n]));
      reward.push_back(expected.reward);
      episode_return.push_back(expected.reward + 1);
      episode_step.push_back(static_cast<int32_t>(expected.position));
      done[n] = expected.done;
      terminated[n] = expected.terminated;
      truncated[n] = expected.truncated;
      episode_over[n] = expected.last;
    }
    observations = count + flags + frame + echo;
    view = {observations,
            {reward.data(), N},
            {done, N},
            {terminated, N},
            {truncated, N},
            {episode_over, N},
            {episode_step.data(), N},
            {episode_return.data(), N},
            1e-9};
  }
};

// Returns the bytes that a server would send.
inline std::string Encode(const StepView& view) {
  const auto field = [](int number, const auto& span) {
    const size_t size = span.size * sizeof(*span.data);
    return Field(number, std::string(reinterpret_cast<const char*>(span.data), size));
  };
  const float seconds = static_cast<float>(view.environment_seconds);
  return Field(1, std::string(view.observations)) + field(2, view.reward) + field(3, view.done) +
         field(4, view.terminated) + field(5, view.truncated) + field(6, view.episode_over) +
         field(7, view.episode_step) + field(8, view.episode_return) + Tag(9, 5) +
         std::string(reinterpret_cast<const char*>(&seconds), sizeof(seconds));
}

// What a life does, and what goes wrong with it.
struct Plan {
  enum Place { kNowhere, kOpen, kRead, kWrite };
  int64_t num_envs = 1;
  Place fails = kNowhere, hangs = kNowhere;              // a call that hangs waits for Cancel
  int64_t at = kForever;                                 // the Step of the failure or the change
  std::function<void(Spec*)> change_spec = nullptr;      // changes the Spec that Open returns
  std::function<void(FakeStep*)> change_step = nullptr;  // changes Step `at`

  int64_t WholeRollouts(int64_t T) const {
    if (fails == kOpen || hangs == kOpen || change_spec) return 0;
    return at == 0 ? 0 : (at - 1) / T;
  }
};

class FakeTransport : public Transport {
 public:
  explicit FakeTransport(std::function<Plan(int address, int life)> plan) : plan(std::move(plan)) {}
  std::unique_ptr<Stream> NewStream(const std::string& address) override;

  const std::function<Plan(int address, int life)> plan;
  std::atomic<int> alive{0}, hanging{0}, writes{0}, wrong_actions{0};

  // The times at which streams to the address were made.
  std::vector<Clock::time_point> births(int address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return births_[address];
  }
  // How long the address's stream had hung when it was cancelled.
  std::chrono::duration<double> waited(int address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return waited_[address];
  }
  void SetWaited(int address, std::chrono::duration<double> time) {
    std::lock_guard<std::mutex> lock(mutex_);
    waited_[address] = time;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<Clock::time_point>> births_;
  std::map<int, std::chrono::duration<double>> waited_;
};

class FakeStream : public Stream {
 public:
  FakeStream(FakeTransport* transport, int address, int life)
      : transport_(transport),
        address_(address),
        life_(life),
        plan_(transport->plan(address, life)) {
    ++transport_->alive;
  }
  ~FakeStream() override { --transport_->alive; }

  Spec Open() override {
    Act(Plan::kOpen, true);
    Spec spec = CountingSpec(plan_.num_envs);
    if (plan_.change_spec) plan_.change_spec(&spec);
    return spec;
  }

  StepView Read() override {
    Act(Plan::kRead, s_ == plan_.at);
    if (s_ > 0 && actions_.empty()) throw std::logic_error("a Read without a Write");
    step_.emplace(address_, life_, plan_.num_envs, s_,
                  s_ == 0 ? std::vector<int64_t>(plan_.num_envs) : actions_);
    actions_.clear();
    if (s_++ == plan_.at && plan_.change_step) plan_.change_step(&*step_);
    sent_ = Encode(step_->view);
    return decoder_.Decode(sent_);
  }

  void Write(const Array& actions) override {
    Act(Plan::kWrite, s_ - 1 == plan_.at);
    const int64_t* numbers = actions.as<int64_t>();
    for (int64_t n = 0; n < plan_.num_envs; ++n) {
      if (numbers[n] != Expected(address_, life_, n, s_ - 1).action) ++transport_->wrong_actions;
    }
    actions_.assign(numbers, numbers + plan_.num_envs);
    ++transport_->writes;
  }

  void Cancel() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
    }
    wake_.notify_all();
  }

 private:
  void Act(Plan::Place place, bool now) {
    if (now && plan_.fails == place) {
      throw StreamError("UNAVAILABLE", "gone at " + std::to_string(s_));
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (now && plan_.hangs == place) {
      ++transport_->hanging;
      wake_.wait(lock, [this] { return cancelled_; });
      --transport_->hanging;
      transport_->SetWaited(address_, Clock::now() - last_call_);
    }
    if (cancelled_) throw StreamError("CANCELLED", "cancelled");
    last_call_ = Clock::now();
  }

  FakeTransport* const transport_;
  const int address_, life_;
  const Plan plan_;
  int64_t s_ = 0;  // the number of the next Step
  std::vector<int64_t> actions_;
  std::optional<FakeStep> step_;
  std::string sent_;
  StepDecoder decoder_;
  Clock::time_point last_call_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false;
};

inline std::unique_ptr<Stream> FakeTransport::NewStream(const std::string& address) {
  const int number = std::stoi(address);
  int life;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    life = static_cast<int>(births_[number].size());
    births_[number].push_back(Clock::now());
  }
  return std::make_unique<FakeStream>(this, number, life);
}

}  // namespace torchbeast
