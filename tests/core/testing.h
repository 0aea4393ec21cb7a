// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What the tests of the core share: arrays from values and back, the text of errors, and threads
// whose failures fail the test.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.h"

namespace torchbeast {

template <class T>
constexpr DType DTypeFor() {
  if (std::is_same_v<T, bool>) return kBool;
  if (std::is_floating_point_v<T>) return {Kind::kFloat, 8 * sizeof(T)};
  return {std::is_signed_v<T> ? Kind::kInt : Kind::kUInt, 8 * sizeof(T)};
}

template <class T>
Array Make(Shape shape, const std::vector<T>& values) {
  Array array = Array::Empty(DTypeFor<T>(), std::move(shape));
  REQUIRE(array.bytes() == static_cast<int64_t>(values.size() * sizeof(T)));
  for (size_t i = 0; i < values.size(); ++i) array.as<T>()[i] = values[i];
  return array;
}

template <class T>
std::vector<T> Values(const Array& array) {
  REQUIRE(array.dtype() == DTypeFor<T>());
  return std::vector<T>(array.as<T>(), array.as<T>() + array.bytes() / sizeof(T));
}

// Returns discrete actions, one for each environment.
inline Array ActionsOf(const std::vector<int64_t>& numbers) {
  return Make<int64_t>({1, static_cast<int64_t>(numbers.size())}, numbers);
}

// Returns the text of the E that `f` throws. Throws if it throws none.
template <class E>
std::string ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  throw std::logic_error("nothing was thrown");
}

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Returns protobuf's tag of a field.
inline std::string Tag(int field, int type) {
  return std::string(1, static_cast<char>(field << 3 | type));
}
// Returns a field of bytes: its tag, its length, and the bytes.
inline std::string Field(int field, const std::string& bytes) {
  std::string out = Tag(field, 2);
  size_t size = bytes.size();
  for (; size > 127; size >>= 7) out += static_cast<char>(size | 128);
  return out + static_cast<char>(size) + bytes;
}

// Is used in threads, where doctest's REQUIRE must not be. Threads::Join throws the error again.
inline void Require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}
inline void Require(bool condition, const std::string& what) { Require(condition, what.c_str()); }

// Threads. They must be joined before the objects that they use are destroyed.
class Threads {
 public:
  void Start(std::function<void()> f) {
    futures_.push_back(std::async(std::launch::async, [f = std::move(f)] {
      try {
        f();
      } catch (const std::exception& error) {  // printed at once: Join may wait for other threads
        std::fprintf(stderr, "a thread threw: %s\n", error.what());
        throw;
      }
    }));
  }
  // Waits for all threads, and throws the first error that one of them threw.
  void Join() {
    for (auto& future : futures_) future.wait();
    for (auto& future : std::exchange(futures_, {})) future.get();
  }

 private:
  std::vector<std::future<void>> futures_;
};

// Waits until `fact` is true. It has no time limit, because the whole run has one against hangs.
inline void Await(const std::function<bool()>& fact) {
  while (!fact()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace torchbeast
