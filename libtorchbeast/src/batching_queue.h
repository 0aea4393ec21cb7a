// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "array.h"
#include "mutex.h"

namespace torchbeast {

// A queue, batcher or pool was closed before or during the call.
class Closed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bounded first-in-first-out queue of columns. Rollouts with any number of columns go in, and
// batches of exactly `batch_size` columns come out. An item is split where a batch ends, and its
// other columns begin the next batch. So items, and the columns of an item, keep their order.
//
//   Enqueue   waits while the queue holds `capacity` or more columns. It takes an item whole, even
//             if the queue then holds more than `capacity`: otherwise an item that does not fit and
//             a batch that is not full could wait for each other.
//   Dequeue   waits until the queue holds `batch_size` columns. A batch that is exactly one item is
//             that item, not a copy. But if the caller lends arrays [T, batch_size, ...] (`into`),
//             all columns are copied there, and nowhere else. Those arrays must have the names,
//             dtypes and shapes of the first item, which must have come before. Else Dequeue throws
//             std::invalid_argument and takes nothing.
//   Close     drops what the queue holds. Calls that wait, and all later calls, throw Closed. Close
//             itself may be called again.
//
// All arrays are [T, columns, ...]. An item whose names, dtypes or shapes differ from the first
// item's is refused with std::invalid_argument. Any number of threads may call anything.
class BatchingQueue {
 public:
  BatchingQueue(int64_t batch_size, int64_t capacity)
      : batch_size_(batch_size), capacity_(capacity) {
    if (batch_size < 1) {
      throw std::invalid_argument("batch_size: expected at least 1, seen " +
                                  std::to_string(batch_size));
    }
    if (capacity < batch_size) {
      throw std::invalid_argument(
          "capacity: expected at least batch_size = " + std::to_string(batch_size) +
          " columns, seen " + std::to_string(capacity));
    }
  }

  void Enqueue(Dict item) EXCLUDES(mutex_) {
    const int64_t columns = CommonColumns(item);
    {
      Lock lock(mutex_);
      ThrowIfClosedLocked();
      if (layout_.empty()) {
        for (const auto& [name, array] : item) layout_.emplace_back(name, array.WithoutMemory());
      }
      CheckSameButColumns(layout_, item);
      while (size_ >= capacity_ && !closed_) room_.Wait(mutex_);
      ThrowIfClosedLocked();
      items_.push_back({std::move(item), 0, columns});
      size_ += columns;
    }
    filled_.NotifyOne();
  }

  Dict Dequeue(const Dict& into = {}) EXCLUDES(mutex_) {
    std::deque<Piece> pieces;
    bool more;
    {
      Lock lock(mutex_);
      ThrowIfClosedLocked();
      if (!into.empty()) CheckLentLocked(into);
      while (size_ < batch_size_ && !closed_) filled_.Wait(mutex_);
      ThrowIfClosedLocked();
      pieces = TakeLocked();
      more = size_ >= batch_size_;
    }
    room_.NotifyAll();
    if (more) filled_.NotifyOne();
    return Join(pieces, into);  // copies outside the lock
  }

  void Close() EXCLUDES(mutex_) {
    std::deque<Piece> dropped;  // freed outside the lock
    {
      Lock lock(mutex_);
      closed_ = true;
      size_ = 0;
      items_.swap(dropped);
    }
    room_.NotifyAll();
    filled_.NotifyAll();
  }

  // The number of columns inside.
  int64_t size() const EXCLUDES(mutex_) {
    Lock lock(mutex_);
    return size_;
  }

 private:
  struct Piece {
    Dict item;
    int64_t from, count;  // the item's columns that are left, or that a batch takes
  };

  void ThrowIfClosedLocked() const REQUIRES(mutex_) {
    if (closed_) throw Closed("the queue is closed");
  }

  // Takes the columns of one batch out of the queue.
  std::deque<Piece> TakeLocked() REQUIRES(mutex_) {
    std::deque<Piece> pieces;
    for (int64_t missing = batch_size_; missing > 0;) {
      Piece& first = items_.front();
      const int64_t count = std::min(missing, first.count);
      pieces.push_back({first.item, first.from, count});
      first.from += count;
      first.count -= count;
      if (first.count == 0) items_.pop_front();
      missing -= count;
    }
    size_ -= batch_size_;
    return pieces;
  }

  void CheckLentLocked(const Dict& into) const REQUIRES(mutex_) {
    CheckSameButColumns(layout_, into);
    const int64_t columns = CommonColumns(into);
    if (columns != batch_size_) {
      throw std::invalid_argument("expected " + std::to_string(batch_size_) +
                                  " columns, as many as a batch has; seen " +
                                  std::to_string(columns));
    }
  }

  // Joins the pieces in the arrays `into`, or in new ones if it is empty.
  Dict Join(const std::deque<Piece>& pieces, const Dict& into) const {
    const Dict& first = pieces.front().item;
    const bool is_whole = pieces.size() == 1 && first.front().second.columns() == batch_size_;
    if (is_whole && into.empty()) return first;
    Dict batch;
    for (size_t i = 0; i < first.size(); ++i) {
      Shape shape = first[i].second.shape();
      shape[1] = batch_size_;
      Array joined = into.empty() ? Array::Empty(first[i].second.dtype(), shape) : into[i].second;
      int64_t to = 0;
      for (const Piece& piece : pieces) {
        CopyColumns(piece.item[i].second, piece.from, piece.count, joined, to);
        to += piece.count;
      }
      batch.emplace_back(first[i].first, std::move(joined));
    }
    return batch;
  }

  const int64_t batch_size_, capacity_;
  mutable Mutex mutex_;
  Condition room_, filled_;
  std::deque<Piece> items_ GUARDED_BY(mutex_);
  int64_t size_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
  Dict layout_ GUARDED_BY(mutex_);  // the first item, without its memory
};

}  // namespace torchbeast
