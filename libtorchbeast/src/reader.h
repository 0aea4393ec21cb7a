// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Bytes of a stranger, read as protobuf's wire format has them, and as text that may be shown.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "array.h"
#include "transport.h"

namespace torchbeast {

constexpr int kProtocol = 2;
constexpr size_t kLongestName = 255;

// How many bytes the character at the start of `text` has; 0 for a control character, or for what
// is no UTF-8.
inline size_t CharacterSize(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const int first = at(0), second = at(1);
  if (first < 0x80) return first >= ' ' && first != 0x7f ? 1 : 0;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const bool too_long =
      first < 0xc2 || (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second > 0x9f;
  const bool too_high = first > 0xf4 || (first == 0xf4 && second > 0x8f);
  const bool control = first == 0xc2 && second < 0xa0;
  return too_long || surrogate || too_high || control ? 0 : size;
}

// What a stranger says, fit for a log, a terminal and Python: a ? for each byte that is not.
inline std::string Printable(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t size = text[0] == '\n' ? 1 : CharacterSize(text);
    printable += size > 0 ? text.substr(0, size) : "?";
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return printable;
}

// A message, field by field, whatever their order. What is no such message throws StreamError,
// before it has cost more memory than its own size.
//
// Stricter than protobuf's parser: no unknown field, none twice, arrays packed, short names. That
// parser makes an object of a hundred bytes from an empty message of two; and nobody needs its
// freedom here, since the protocol has a number.
class Reader {
 public:
  // `what` is for errors; only the field `repeated` may come more than once.
  Reader(const char* what, std::string_view bytes, uint64_t repeated = 0)
      : what_(what), rest_(bytes), repeated_(repeated) {}

  // Goes to the next field; false at the end.
  bool Next() {
    if (rest_.empty()) return false;
    const uint64_t tag = ReadVarint();
    field_ = tag >> 3;
    type_ = static_cast<int>(tag & 7);
    if (field_ == 0 || field_ > 63) Unknown();
    const uint64_t bit = uint64_t{1} << field_;
    if (seen_ & bit && field_ != repeated_)
      Refuse("expected field " + Name() + " once, seen twice");
    seen_ |= bit;
    return true;
  }
  uint64_t field() const { return field_; }

  uint64_t Varint() {
    Expect(0);
    return ReadVarint();
  }
  std::string_view Bytes() {
    Expect(2);
    return Take(ReadVarint());
  }
  float Float() {
    Expect(5);
    float number;
    std::memcpy(&number, Take(sizeof(number)).data(), sizeof(number));
    return number;
  }
  // Packed numbers of T's size into `memory`.
  template <class T>
  Span<T> Numbers(std::vector<T>* memory) {
    const std::string_view bytes = Bytes();
    if (bytes.size() % sizeof(T) != 0) {
      Refuse("field " + Name() + ": expected numbers of " + std::to_string(sizeof(T)) +
             " bytes, seen " + std::to_string(bytes.size()) + " bytes");
    }
    const size_t count = bytes.size() / sizeof(T);
    if (count > memory->capacity())
      *memory = std::vector<T>();  // freed before there is a larger one
    memory->resize(count);
    if (!bytes.empty()) std::memcpy(memory->data(), bytes.data(), bytes.size());
    return {memory->data(), static_cast<int64_t>(memory->size())};
  }
  // Packed bools, where they are.
  Span<bool> Bools() {
    const std::string_view bytes = Bytes();
    for (char byte : bytes) {
      if (byte & ~1) Refuse("field " + Name() + ": expected bytes 0 and 1, seen others");
    }
    return {reinterpret_cast<const bool*>(bytes.data()), static_cast<int64_t>(bytes.size())};
  }
  // Packed varints, at most so many.
  Shape Varints(size_t most) {
    Reader numbers(what_, Bytes());
    Shape shape;
    while (!numbers.rest_.empty()) {
      if (shape.size() == most) {
        Refuse("field " + Name() + ": expected at most " + std::to_string(most) + " numbers");
      }
      shape.push_back(static_cast<int64_t>(numbers.ReadVarint()));
    }
    return shape;
  }
  // A name, to be shown.
  std::string Text() {
    const std::string_view bytes = Bytes();
    if (bytes.size() > kLongestName) {
      Refuse("field " + Name() + ": expected a name of at most " + std::to_string(kLongestName) +
             " bytes, seen " + std::to_string(bytes.size()));
    }
    for (std::string_view rest = bytes; !rest.empty(); rest.remove_prefix(CharacterSize(rest))) {
      if (CharacterSize(rest) == 0) {
        Refuse("field " + Name() + ": expected a name in UTF-8, seen " + Printable(bytes));
      }
    }
    return std::string(bytes);
  }

  [[noreturn]] void Unknown() const {
    Refuse("field " + Name() + " is not one of protocol " + std::to_string(kProtocol));
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw StreamError("INVALID_ARGUMENT", std::string(what_) + ": " + why);
  }
  std::string Name() const { return std::to_string(field_); }

  void Expect(int type) const {
    if (type_ == type) return;
    Refuse("field " + Name() + ": expected wire type " + std::to_string(type) + ", seen " +
           std::to_string(type_));
  }
  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) {
      Refuse("field " + Name() + ": expected " + std::to_string(size) + " bytes, seen " +
             std::to_string(rest_.size()));
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  uint64_t ReadVarint() {
    uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      number |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return number;
    }
    Refuse("after field " + Name() + ": expected a number of at most 10 bytes, seen a longer one");
  }

  const char* const what_;
  std::string_view rest_;
  const uint64_t repeated_;
  uint64_t field_ = 0, seen_ = 0;  // seen_: bit i for field i
  int type_ = 0;
};

}  // namespace torchbeast
