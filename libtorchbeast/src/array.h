// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// An n-dimensional array in CPU memory, contiguous and row-major, with shared ownership of its
// memory: copying an Array copies a reference. Wherever arrays travel, dimension 1 is the column
// (one environment), so that rows [1, N, ...], rollouts [T+1, N, ...] and recurrent states
// [layers, N, ...] are cut and joined by the same two functions. Knows no Python.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"

namespace torchbeast {

// Numbered like DLPack's codes; `bits` of one element.
enum class Kind : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kComplex = 5, kBool = 6 };

struct DType {
  Kind kind = Kind::kUInt;
  uint8_t bits = 8;

  int64_t size() const { return bits / 8; }
  bool operator==(const DType& other) const { return kind == other.kind && bits == other.bits; }
  std::string name() const {
    switch (kind) {
      case Kind::kInt:
        return "int" + std::to_string(bits);
      case Kind::kUInt:
        return "uint" + std::to_string(bits);
      case Kind::kFloat:
        return "float" + std::to_string(bits);
      case Kind::kBFloat:
        return "bfloat" + std::to_string(bits);
      case Kind::kComplex:
        return "complex" + std::to_string(bits);
      case Kind::kBool:
        return "bool";
    }
    return "dtype " + std::to_string(static_cast<int>(kind));
  }
};

constexpr DType kBool{Kind::kBool, 8}, kInt32{Kind::kInt, 32}, kInt64{Kind::kInt, 64},
    kUInt8{Kind::kUInt, 8}, kFloat32{Kind::kFloat, 32};

using Shape = std::vector<int64_t>;

inline int64_t NumElements(const Shape& shape, size_t from = 0) {
  return std::accumulate(shape.begin() + from, shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

// For messages: "uint8[1, 8, 84, 84]".
inline std::string Describe(DType dtype, const Shape& shape) {
  std::string text = dtype.name() + "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

class Array {
 public:
  Array() = default;

  // `owner` keeps the memory at `data` alive.
  Array(DType dtype, Shape shape, std::shared_ptr<void> owner, void* data)
      : dtype_(dtype),
        shape_(std::move(shape)),
        owner_(std::move(owner)),
        data_(static_cast<uint8_t*>(data)) {}

  // New memory, not initialised.
  static Array Empty(DType dtype, Shape shape) {
    const size_t bytes = NumElements(shape) * dtype.size();
    Memory& memory = Memory::Shared();
    std::shared_ptr<void> owner(memory.Take(bytes), [&, bytes](void* p) { memory.Give(p, bytes); });
    void* data = owner.get();
    return Array(dtype, std::move(shape), std::move(owner), data);
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const std::shared_ptr<void>& owner() const { return owner_; }
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return NumElements(shape_) * dtype_.size(); }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

  // [t:t+1], in the same memory.
  Array Row(int64_t t) const {
    Shape shape = shape_;
    shape[0] = 1;
    Array row(dtype_, shape, owner_, data_);
    row.data_ += t * row.bytes();
    return row;
  }

  int64_t columns() const {
    if (shape_.size() < 2) {
      throw std::invalid_argument("expected an array [T, B, ...], seen " + describe());
    }
    return shape_[1];
  }
  // Bytes of one column in one row.
  int64_t column_bytes() const { return NumElements(shape_, 2) * dtype_.size(); }

  std::string describe() const { return Describe(dtype_, shape_); }

  // Whether both have the same dtype and shape, whatever their columns.
  bool SameButColumns(const Array& other) const {
    Shape shape = other.shape_;
    if (shape.size() != shape_.size() || shape.size() < 2) return false;
    shape[1] = shape_[1];
    return dtype_ == other.dtype_ && shape == shape_;
  }

 private:
  DType dtype_;
  Shape shape_;
  std::shared_ptr<void> owner_;
  uint8_t* data_ = nullptr;
};

// Columns [from, from + count) of `source` become those from `to` on of `target`.
inline void CopyColumns(const Array& source, int64_t from, int64_t count, const Array& target,
                        int64_t to) {
  const int64_t size = source.column_bytes();
  const int64_t source_row = source.columns() * size, target_row = target.columns() * size;
  if (count * size == 0) return;
  for (int64_t t = 0; t < source.shape()[0]; ++t) {
    std::memcpy(target.data() + t * target_row + to * size,
                source.data() + t * source_row + from * size, count * size);
  }
}

// Columns [from, from + count): in the same memory where they are contiguous there, else a copy.
inline Array SliceColumns(const Array& array, int64_t from, int64_t count) {
  Shape shape = array.shape();
  shape[1] = count;
  if (shape[0] == 1 || count == array.columns()) {
    return Array(array.dtype(), shape, array.owner(), array.data() + from * array.column_bytes());
  }
  Array slice = Array::Empty(array.dtype(), shape);
  CopyColumns(array, from, count, slice, 0);
  return slice;
}

using Arrays = std::vector<Array>;
using Dict = std::vector<std::pair<std::string, Array>>;  // in the order of insertion

inline std::string Names(const Dict& dict) {
  std::string text;
  for (const auto& [name, array] : dict) text += (text.empty() ? "" : ", ") + name;
  return text;
}

inline const Array* Find(const Dict& dict, const std::string& name) {
  for (const auto& [key, array] : dict) {
    if (key == name) return &array;
  }
  return nullptr;
}

// The number of columns that all arrays share; std::invalid_argument if they do not.
inline int64_t CommonColumns(const Dict& dict) {
  if (dict.empty()) throw std::invalid_argument("expected at least one array, seen none");
  const int64_t columns = dict.front().second.columns();
  for (const auto& [name, array] : dict) {
    if (array.columns() != columns) {
      throw std::invalid_argument(name + ": expected " + std::to_string(columns) +
                                  " columns, seen " + array.describe());
    }
  }
  if (columns == 0) throw std::invalid_argument("expected at least one column, seen none");
  return columns;
}

// std::invalid_argument unless `seen` has the names, dtypes and shapes of `expected`, whatever its
// columns.
inline void CheckSameButColumns(const Dict& expected, const Dict& seen) {
  if (expected.size() != seen.size()) {
    throw std::invalid_argument("expected the arrays " + Names(expected) + "; seen " + Names(seen));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, array] = expected[i];
    if (seen[i].first != name) {
      throw std::invalid_argument("expected the arrays " + Names(expected) + "; seen " +
                                  Names(seen));
    }
    if (!array.SameButColumns(seen[i].second)) {
      throw std::invalid_argument(name + ": expected " + array.describe() +
                                  " with any number of columns, seen " + seen[i].second.describe());
    }
  }
}

}  // namespace torchbeast
