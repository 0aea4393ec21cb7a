// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "batching_queue.h"
#include "mutex.h"
#include "net_io.h"

namespace torchbeast {

// The batch that a call was part of was dropped without an answer.
class Unanswered : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One call of DynamicBatcher::Compute that waits for its answer. Either Answer or Fail ends it: the
// first call counts, and later ones do nothing.
class Request {
 public:
  Request(NetIO inputs, int64_t columns)
      : inputs(std::move(inputs)), columns(columns), arrived(Clock::now()) {}

  void Answer(NetIO outputs) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    if (state_ != kWaiting) return;
    outputs_ = std::move(outputs);
    state_ = kAnswered;
    ended_.NotifyAll();  // inside the lock, because the caller may destroy this once it is free
  }

  // Wait then throws Closed if `closed`, else Unanswered.
  void Fail(const std::string& why, bool closed) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    if (state_ != kWaiting) return;
    why_ = why;
    state_ = closed ? kClosed : kUnanswered;
    ended_.NotifyAll();
  }

  NetIO Wait() EXCLUDES(mutex_) {
    Lock lock(mutex_);
    while (state_ == kWaiting) ended_.Wait(mutex_);
    if (state_ == kClosed) throw Closed(why_);
    if (state_ == kUnanswered) throw Unanswered(why_);
    return std::move(outputs_);
  }

  const NetIO inputs;
  const int64_t columns;
  const Clock::time_point arrived;
  std::atomic<Clock::time_point> taken{Clock::time_point()};  // when a batch took it

 private:
  enum State { kWaiting, kAnswered, kUnanswered, kClosed };
  Mutex mutex_;
  Condition ended_;
  State state_ GUARDED_BY(mutex_) = kWaiting;
  NetIO outputs_ GUARDED_BY(mutex_);
  std::string why_ GUARDED_BY(mutex_);
};

// Requests that are answered together. If the batch is destroyed without an answer, its callers get
// Unanswered. An answer that comes after the batcher was closed has no effect. One thread at a time
// may use a batch.
class Batch {
 public:
  explicit Batch(std::vector<std::shared_ptr<Request>> requests) : requests_(std::move(requests)) {
    for (const auto& request : requests_) columns_ += request->columns;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    for (const auto& request : requests_) {
      request->Fail("the batch was dropped without an answer", /*closed=*/false);
    }
  }

  int64_t columns() const { return columns_; }

  // Returns the requests' columns side by side, oldest first. The arrays of a single request are
  // not copied. But if the caller lends arrays, all columns are copied there, and nowhere else.
  // Those arrays must have the names, dtypes and shapes of the requests, and as many columns as the
  // batch. Else this throws std::invalid_argument.
  NetIO GetInputs(const NetIO* into = nullptr) const {
    const NetIO& first = requests_.front()->inputs;
    if (into != nullptr) CheckLent(first, *into);
    if (into == nullptr && requests_.size() == 1) return first;
    NetIO inputs;
    for (size_t i = 0; i < first.arrays.size(); ++i) {
      const auto get = [i](const NetIO& io) -> const Array& { return io.arrays[i].second; };
      inputs.arrays.emplace_back(first.arrays[i].first, Join(get, into));
    }
    for (size_t i = 0; i < first.core_state.size(); ++i) {
      const auto get = [i](const NetIO& io) -> const Array& { return io.core_state[i]; };
      inputs.core_state.push_back(Join(get, into));
    }
    return inputs;
  }

  // Gives each caller its columns. Throws std::invalid_argument if an array has another number of
  // columns than the inputs, or if the batch was answered before.
  void SetOutputs(const NetIO& outputs) {
    if (answered_) throw std::invalid_argument("the batch has its outputs already");
    for (const auto& [name, array] : Layout(outputs)) CheckColumns("outputs, " + name, array);
    answered_ = true;
    int64_t from = 0;
    for (const auto& request : requests_) {
      NetIO part;
      for (const auto& [name, array] : outputs.arrays) {
        part.arrays.emplace_back(name, SliceColumns(array, from, request->columns));
      }
      for (const Array& state : outputs.core_state) {
        part.core_state.push_back(SliceColumns(state, from, request->columns));
      }
      from += request->columns;
      request->Answer(std::move(part));
    }
  }

 private:
  // Joins the array that `get` returns of each request's inputs, in that of `into` or in a new one.
  template <class Get>
  Array Join(Get get, const NetIO* into) const {
    const Array& first = get(requests_.front()->inputs);
    Shape shape = first.shape();
    shape[1] = columns_;
    Array joined = into == nullptr ? Array::Empty(first.dtype(), shape) : get(*into);
    int64_t to = 0;
    for (const auto& request : requests_) {
      CopyColumns(get(request->inputs), 0, request->columns, joined, to);
      to += request->columns;
    }
    return joined;
  }

  void CheckLent(const NetIO& first, const NetIO& into) const {
    CheckSameButColumns(Layout(first), Layout(into));
    for (const auto& [name, array] : Layout(into)) CheckColumns(name, array);
  }

  void CheckColumns(const std::string& name, const Array& array) const {
    if (array.columns() != columns_) {
      throw std::invalid_argument(name + ": expected " + std::to_string(columns_) +
                                  " columns, seen " + array.describe());
    }
  }

  const std::vector<std::shared_ptr<Request>> requests_;
  int64_t columns_ = 0;
  bool answered_ = false;
};

}  // namespace torchbeast
