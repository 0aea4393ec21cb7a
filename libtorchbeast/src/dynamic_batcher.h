// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "batching_queue.h"
#include "mutex.h"

namespace torchbeast {

// What the callers of a batch get that was dropped without an answer.
class Unanswered : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a network takes, and what it gives: named arrays [1, columns, ...] and the recurrent state,
// arrays [layers, columns, ...].
struct Exchange {
  Dict arrays;
  Arrays core_state;
};

// One call of DynamicBatcher::Compute that waits for its answer.
class Request {
 public:
  Request(Exchange inputs, int64_t columns)
      : inputs(std::move(inputs)), columns(columns), arrived(Clock::now()) {}

  // The first of the two counts; later ones do nothing.
  void Answer(Exchange outputs) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    if (state_ != kWaiting) return;
    outputs_ = std::move(outputs);
    state_ = kAnswered;
    ended_.NotifyAll();  // inside the lock: the caller may end this object as soon as it is free
  }
  void Fail(const std::string& why, bool closed) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    if (state_ != kWaiting) return;
    why_ = why;
    state_ = closed ? kClosed : kUnanswered;
    ended_.NotifyAll();
  }
  Exchange Wait() EXCLUDES(mutex_) {
    Lock lock(mutex_);
    while (state_ == kWaiting) ended_.Wait(mutex_);
    if (state_ == kClosed) throw Closed(why_);
    if (state_ == kUnanswered) throw Unanswered(why_);
    return std::move(outputs_);
  }

  const Exchange inputs;
  const int64_t columns;
  const Clock::time_point arrived;
  std::atomic<Clock::time_point> taken{Clock::time_point()};  // by a thread that answers it

 private:
  enum State { kWaiting, kAnswered, kUnanswered, kClosed };
  Mutex mutex_;
  Condition ended_;
  State state_ GUARDED_BY(mutex_) = kWaiting;
  Exchange outputs_ GUARDED_BY(mutex_);
  std::string why_ GUARDED_BY(mutex_);
};

// Requests to be answered together. Destroyed without an answer, it fails their callers with
// Unanswered; an answer that comes after the batcher was closed goes nowhere. Used by one thread at
// a time.
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

  // The requests' columns side by side, oldest first; a single request's own arrays, not copies.
  Exchange GetInputs() const {
    const Exchange& first = requests_.front()->inputs;
    if (requests_.size() == 1) return first;
    Exchange inputs;
    for (size_t i = 0; i < first.arrays.size(); ++i) {
      inputs.arrays.emplace_back(
          first.arrays[i].first,
          Join([i](const Exchange& e) -> const Array& { return e.arrays[i].second; }));
    }
    for (size_t i = 0; i < first.core_state.size(); ++i) {
      inputs.core_state.push_back(
          Join([i](const Exchange& e) -> const Array& { return e.core_state[i]; }));
    }
    return inputs;
  }

  // Gives each caller its columns. Throws std::invalid_argument where an array has not as many
  // columns as the inputs, or the batch has its answer already.
  void SetOutputs(const Exchange& outputs) {
    if (answered_) throw std::invalid_argument("the batch has its outputs already");
    for (const auto& [name, array] : outputs.arrays) CheckColumns(name, array);
    for (const Array& state : outputs.core_state) CheckColumns("core_state", state);
    answered_ = true;
    int64_t from = 0;
    for (const auto& request : requests_) {
      Exchange own;
      for (const auto& [name, array] : outputs.arrays) {
        own.arrays.emplace_back(name, SliceColumns(array, from, request->columns));
      }
      for (const Array& state : outputs.core_state) {
        own.core_state.push_back(SliceColumns(state, from, request->columns));
      }
      from += request->columns;
      request->Answer(std::move(own));
    }
  }

 private:
  template <class Get>
  Array Join(Get get) const {
    const Array& first = get(requests_.front()->inputs);
    Shape shape = first.shape();
    shape[1] = columns_;
    Array joined = Array::Empty(first.dtype(), shape);
    int64_t to = 0;
    for (const auto& request : requests_) {
      CopyColumns(get(request->inputs), 0, request->columns, joined, to);
      to += request->columns;
    }
    return joined;
  }

  void CheckColumns(const std::string& name, const Array& array) const {
    if (array.columns() != columns_) {
      throw std::invalid_argument("outputs, " + name + ": expected " + std::to_string(columns_) +
                                  " columns, seen " + array.describe());
    }
  }

  const std::vector<std::shared_ptr<Request>> requests_;
  int64_t columns_ = 0;
  bool answered_ = false;
};

// Joins the requests of many threads into batches for few.
//
//   Compute  hands in columns and waits for the answer to them; says when a thread took them.
//   Next     waits until `minimum` columns wait, or the oldest request has waited for `timeout`;
//            returns the oldest requests that together have at most `maximum` columns. Requests
//            are never split: one above `maximum` is refused with std::invalid_argument.
//   Close    may be called twice. Calls that wait, also for batches that were handed out and not
//            answered, and all later ones throw Closed.
//
// Names, dtypes and shapes are the first request's (std::invalid_argument otherwise). Any number
// of threads may call anything. Lock order: mutex_, then a Request's.
class DynamicBatcher {
 public:
  DynamicBatcher(int64_t minimum, int64_t maximum, std::chrono::microseconds timeout)
      : minimum_(minimum), maximum_(maximum), timeout_(timeout) {
    if (minimum < 1 || maximum < minimum) {
      throw std::invalid_argument("batch sizes: expected 1 <= minimum <= maximum, seen minimum " +
                                  std::to_string(minimum) + " and maximum " +
                                  std::to_string(maximum));
    }
    if (timeout.count() < 0) {
      throw std::invalid_argument("timeout: expected at least 0, seen " +
                                  std::to_string(timeout.count()) + " us");
    }
  }

  Exchange Compute(Exchange inputs, Clock::time_point* taken = nullptr) EXCLUDES(mutex_) {
    const int64_t columns = CommonColumns(inputs.arrays);
    const Dict form = Form(inputs);
    CommonColumns(form);
    if (columns > maximum_) {
      throw std::invalid_argument("a request of " + std::to_string(columns) +
                                  " columns: expected at most the maximum of " +
                                  std::to_string(maximum_));
    }
    const auto request = std::make_shared<Request>(std::move(inputs), columns);
    {
      Lock lock(mutex_);
      if (closed_) throw Closed("the batcher is closed");
      if (like_.empty()) like_ = form;
      CheckSameButColumns(like_, form);
      waiting_.push_back(request);
      waiting_columns_ += columns;
      open_.insert(request);
    }
    arrived_.NotifyOne();
    try {
      Exchange outputs = request->Wait();
      if (taken != nullptr) *taken = request->taken;
      Forget(request);
      return outputs;
    } catch (...) {
      Forget(request);
      throw;
    }
  }

  std::unique_ptr<Batch> Next() EXCLUDES(mutex_) {
    std::vector<std::shared_ptr<Request>> taken;
    bool more;
    {
      Lock lock(mutex_);
      while (!closed_ && !ReadyLocked()) {
        if (waiting_.empty()) {
          arrived_.Wait(mutex_);
        } else {
          arrived_.WaitUntil(mutex_, After(waiting_.front()->arrived, timeout_));
        }
      }
      if (closed_) throw Closed("the batcher is closed");
      int64_t columns = 0;
      while (!waiting_.empty() && columns + waiting_.front()->columns <= maximum_) {
        columns += waiting_.front()->columns;
        taken.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
      }
      waiting_columns_ -= columns;
      more = !waiting_.empty();
    }
    if (more) arrived_.NotifyOne();
    const Clock::time_point now = Clock::now();
    for (const auto& request : taken) request->taken = now;
    return std::make_unique<Batch>(std::move(taken));
  }

  void Close() EXCLUDES(mutex_) {
    std::set<std::shared_ptr<Request>> open;
    {
      Lock lock(mutex_);
      closed_ = true;
      waiting_.clear();
      waiting_columns_ = 0;
      open.swap(open_);
    }
    arrived_.NotifyAll();
    for (const auto& request : open) request->Fail("the batcher is closed", /*closed=*/true);
  }

  int64_t maximum() const { return maximum_; }

  // Columns that wait to be taken.
  int64_t size() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    return waiting_columns_;
  }

 private:
  // What must be alike in all requests: everything but the memory and the columns.
  static Dict Form(const Exchange& inputs) {
    Dict form;
    const auto add = [&form](const std::string& name, const Array& array) {
      form.emplace_back(name, Array(array.dtype(), array.shape(), nullptr, nullptr));
    };
    for (const auto& [name, array] : inputs.arrays) add(name, array);
    for (const Array& state : inputs.core_state) add("core_state", state);
    return form;
  }

  bool ReadyLocked() const REQUIRES(mutex_) {
    if (waiting_.empty()) return false;
    return waiting_columns_ >= minimum_ ||
           Clock::now() >= After(waiting_.front()->arrived, timeout_);
  }

  void Forget(const std::shared_ptr<Request>& request) EXCLUDES(mutex_) {
    Lock lock(mutex_);
    open_.erase(request);
  }

  const int64_t minimum_, maximum_;
  const std::chrono::microseconds timeout_;
  mutable Mutex mutex_;
  Condition arrived_;
  std::deque<std::shared_ptr<Request>> waiting_ GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Request>> open_ GUARDED_BY(mutex_);  // waiting or handed out
  int64_t waiting_columns_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
  Dict like_ GUARDED_BY(mutex_);
};

}  // namespace torchbeast
