// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Arrays, and named arrays. Wherever they travel, dimension 1 is the column, which is one
// environment. So the same functions cut and join rows [1, N, ...], rollouts [T+1, N, ...] and
// recurrent states [layers, N, ...]. This file does not depend on Python.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "block_cache.h"

namespace torchbeast {

// The numbers are DLPack's codes.
enum class Kind : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kComplex = 5, kBool = 6 };

struct DType {
  Kind kind = Kind::kUInt;
  uint8_t bits = 8;  // of one element

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

// Returns text for messages, such as "uint8[1, 8, 84, 84]".
inline std::string Describe(DType dtype, const Shape& shape) {
  std::string text = dtype.name() + "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// An n-dimensional array in CPU memory, contiguous and row-major. Arrays share the ownership of
// their memory: copying an Array copies a reference.
class Array {
 public:
  Array() = default;

  // `owner` keeps the memory at `data` alive.
  Array(DType dtype, Shape shape, std::shared_ptr<void> owner, void* data)
      : dtype_(dtype),
        shape_(std::move(shape)),
        owner_(std::move(owner)),
        data_(static_cast<uint8_t*>(data)) {}

  // Allocates memory and does not initialise it.
  static Array Empty(DType dtype, Shape shape) {
    const size_t bytes = NumElements(shape) * dtype.size();
    BlockCache& cache = BlockCache::Shared();
    std::shared_ptr<void> owner(cache.Allocate(bytes),
                                [&, bytes](void* block) { cache.Free(block, bytes); });
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

  // Rows [t:t+1], in the same memory.
  Array Row(int64_t t) const {
    Shape shape = shape_;
    shape[0] = 1;
    Array row(dtype_, shape, owner_, data_);
    row.data_ += t * row.bytes();
    return row;
  }

  // Throws std::invalid_argument if the array has fewer than two dimensions.
  int64_t columns() const {
    if (shape_.size() < 2) {
      throw std::invalid_argument("expected an array [T, B, ...], seen " + describe());
    }
    return shape_[1];
  }
  // The bytes of one column in one row.
  int64_t column_bytes() const { return NumElements(shape_, 2) * dtype_.size(); }

  std::string describe() const { return Describe(dtype_, shape_); }

  // The same dtype and shape, with no memory.
  Array WithoutMemory() const { return Array(dtype_, shape_, nullptr, nullptr); }

  // Whether both have the same dtype and shape. Their numbers of columns may differ.
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

// Copies the columns [from, from + count) of `source` to `target`, from its column `to` on.
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

// Returns the columns [from, from + count), in the same memory where they are contiguous there, and
// as a copy otherwise.
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

inline Arrays Copy(const Arrays& arrays) {
  Arrays copies;
  for (const Array& array : arrays) {
    copies.push_back(Array::Empty(array.dtype(), array.shape()));
    if (array.bytes() > 0) std::memcpy(copies.back().data(), array.data(), array.bytes());
  }
  return copies;
}

// Returns copies in which the first column of `arrays` is repeated N times.
inline Arrays RepeatColumn(const Arrays& arrays, int64_t N) {
  Arrays repeated;
  for (const Array& array : arrays) {
    Shape shape = array.shape();
    shape[1] = N;
    repeated.push_back(Array::Empty(array.dtype(), shape));
    for (int64_t n = 0; n < N; ++n) CopyColumns(array, 0, 1, repeated.back(), n);
  }
  return repeated;
}

inline std::string Names(const Dict& dict) {
  std::string text;
  for (const auto& [name, array] : dict) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Returns null if there is no such name.
inline const Array* Find(const Dict& dict, const std::string& name) {
  for (const auto& [key, array] : dict) {
    if (key == name) return &array;
  }
  return nullptr;
}

// Returns the number of columns. Throws std::invalid_argument if the arrays differ in it, or if
// there is no array or no column.
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

// Throws std::invalid_argument unless `seen` has the names, dtypes and shapes of `expected`. Their
// numbers of columns may differ.
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
