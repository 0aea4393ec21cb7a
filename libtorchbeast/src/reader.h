// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Reads bytes that nobody has checked yet: as a message in protobuf's wire format, and as text for
// a log.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "array.h"
#include "step.h"
#include "transport.h"

namespace torchbeast {

constexpr int kProtocol = 2;  // Spec.protocol in rpcenv.proto
constexpr size_t kMaxNameBytes = 255;

// Returns the number of bytes of the UTF-8 character that `text` begins with. Returns 0 for a
// control character, and for bytes that are not UTF-8.
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

// Returns the text of a server in a form that is safe in a log, in a terminal and in Python.
// Control characters but line feeds, and bytes that are not UTF-8, become a ? each.
inline std::string Printable(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t size = text[0] == '\n' ? 1 : CharacterSize(text);
    printable += size > 0 ? text.substr(0, size) : "?";
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return printable;
}

// Reads a message field by field, in whatever order they come. Next goes to a field, field() is its
// number, and the method of its type reads it, or Unknown refuses it.
//
// Bytes that are not such a message throw StreamError, before they have taken more memory than
// their own size. Protobuf's parser could not promise that: it makes an object of a hundred bytes
// from an empty message of two. The reader is also stricter than that parser. It refuses unknown
// fields, fields that come twice, arrays that are not packed, and long names; senders need none.
class Reader {
 public:
  // `what` names the message in errors. Only the field `repeated` may come more than once.
  Reader(const char* what, std::string_view bytes, uint64_t repeated = 0)
      : what_(what), rest_(bytes), repeated_(repeated) {}

  // Goes to the next field. Returns false at the end.
  bool Next() {
    if (rest_.empty()) return false;
    const uint64_t tag = ReadVarint();
    field_ = tag >> 3;
    type_ = static_cast<int>(tag & 7);
    if (field_ == 0 || field_ > 63) Unknown();
    const uint64_t bit = uint64_t{1} << field_;
    if (seen_ & bit && field_ != repeated_)
      Refuse("expected field " + Number() + " once, seen twice");
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
  // Copies packed numbers of T's size into `memory`.
  template <class T>
  Span<T> Numbers(std::vector<T>* memory) {
    const std::string_view bytes = Bytes();
    if (bytes.size() % sizeof(T) != 0) {
      Refuse("field " + Number() + ": expected numbers of " + std::to_string(sizeof(T)) +
             " bytes, seen " + std::to_string(bytes.size()) + " bytes");
    }
    const size_t count = bytes.size() / sizeof(T);
    if (count > memory->capacity())
      *memory = std::vector<T>();  // frees the old memory before it allocates more
    memory->resize(count);
    if (!bytes.empty()) std::memcpy(memory->data(), bytes.data(), bytes.size());
    return {memory->data(), static_cast<int64_t>(memory->size())};
  }
  // Returns packed bools without a copy.
  Span<bool> Bools() {
    const std::string_view bytes = Bytes();
    for (char byte : bytes) {
      if (byte & ~1) Refuse("field " + Number() + ": expected bytes 0 and 1, seen others");
    }
    return {reinterpret_cast<const bool*>(bytes.data()), static_cast<int64_t>(bytes.size())};
  }
  // Reads packed varints. Throws if there are more than `max`.
  Shape Varints(size_t max) {
    Reader numbers(what_, Bytes());
    Shape shape;
    while (!numbers.rest_.empty()) {
      if (shape.size() == max) {
        Refuse("field " + Number() + ": expected at most " + std::to_string(max) + " numbers");
      }
      shape.push_back(static_cast<int64_t>(numbers.ReadVarint()));
    }
    return shape;
  }
  // Reads a name, which must be short and printable.
  std::string Text() {
    const std::string_view bytes = Bytes();
    if (bytes.size() > kMaxNameBytes) {
      Refuse("field " + Number() + ": expected a name of at most " + std::to_string(kMaxNameBytes) +
             " bytes, seen " + std::to_string(bytes.size()));
    }
    for (std::string_view rest = bytes; !rest.empty(); rest.remove_prefix(CharacterSize(rest))) {
      if (CharacterSize(rest) == 0) {
        Refuse("field " + Number() + ": expected a name in UTF-8, seen " + Printable(bytes));
      }
    }
    return std::string(bytes);
  }

  // Refuses the field, because the message has no such field.
  [[noreturn]] void Unknown() const {
    Refuse("field " + Number() + " is not one of protocol " + std::to_string(kProtocol));
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw StreamError("INVALID_ARGUMENT", std::string(what_) + ": " + why);
  }
  std::string Number() const { return std::to_string(field_); }

  void Expect(int type) const {
    if (type_ == type) return;
    Refuse("field " + Number() + ": expected wire type " + std::to_string(type) + ", seen " +
           std::to_string(type_));
  }
  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) {
      Refuse("field " + Number() + ": expected " + std::to_string(size) + " bytes, seen " +
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
    Refuse("after field " + Number() +
           ": expected a number of at most 10 bytes, seen a longer one");
  }

  const char* const what_;
  std::string_view rest_;
  const uint64_t repeated_;
  uint64_t field_ = 0;
  uint64_t seen_ = 0;  // bit i is set if field i has come
  int type_ = 0;
};

}  // namespace torchbeast
