// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "batch.h"
#include "batching_queue.h"
#include "mutex.h"
#include "net_io.h"

namespace torchbeast {

// Joins the requests of many threads into batches that few threads answer.
//
//   Compute  hands in columns and waits for the answer. `taken` is when a batch took the columns.
//   Next     waits until `minimum` columns wait, or until the oldest request is `timeout` old. It
//            returns the oldest requests that together have at most `maximum` columns. Requests
//            are never split, so Compute refuses one with more than `maximum` columns with
//            std::invalid_argument.
//   Close    makes calls that wait, and all later calls, throw Closed. That includes calls whose
//            batch was handed out and not yet answered. Close itself may be called again.
//
// A request whose names, dtypes or shapes differ from the first request's is refused with
// std::invalid_argument. Any number of threads may call anything. Lock order: first mutex_, then
// the mutex of a Request.
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

  NetIO Compute(NetIO inputs, Clock::time_point* taken = nullptr) EXCLUDES(mutex_) {
    const int64_t columns = CommonColumns(inputs.arrays);
    const Dict layout = Layout(inputs);
    CommonColumns(layout);
    if (columns > maximum_) {
      throw std::invalid_argument("a request of " + std::to_string(columns) +
                                  " columns: expected at most the maximum of " +
                                  std::to_string(maximum_));
    }
    const auto request = std::make_shared<Request>(std::move(inputs), columns);
    {
      Lock lock(mutex_);
      if (closed_) throw Closed("the batcher is closed");
      if (layout_.empty()) layout_ = layout;
      CheckSameButColumns(layout_, layout);
      waiting_.push_back(request);
      waiting_columns_ += columns;
      open_.insert(request);
    }
    arrived_.NotifyOne();
    try {
      NetIO outputs = request->Wait();
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

  // The number of columns that no batch has taken yet.
  int64_t size() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    return waiting_columns_;
  }

 private:
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
  Dict layout_ GUARDED_BY(mutex_);  // the first request's
};

}  // namespace torchbeast
