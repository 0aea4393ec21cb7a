// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "decoder.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "replay.h"
#include "testing.h"

namespace torchbeast {
namespace {

// Returns the result, and the error that ended the replay or "".
std::pair<ReplayResult, std::string> ReplayFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ReplayResult result;
  try {
    Replay(Messages(bytes), &result);
  } catch (const StreamError& error) {
    return {result, error.what()};
  }
  return {result, ""};
}

TEST_CASE(
    "decoder: files of the corpus are accepted if called good, and refused at their message if "
    "not") {
  int good = 0, specs = 0, steps = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/core/corpus")) {
    const std::string name = entry.path().filename();
    CAPTURE(name);
    const auto& [result, error] = ReplayFile(entry.path());
    CAPTURE(error);
    CHECK(result.excess_bytes <= 1 << 16);
    if (name.rfind("good-", 0) == 0) {
      CHECK(error == "");
      CHECK(result.steps > 0);
      ++good;
      continue;
    }
    const bool is_spec = name.rfind("spec-", 0) == 0;
    CHECK((is_spec || name.rfind("step-", 0) == 0));
    CHECK(error.rfind(is_spec ? "INVALID_ARGUMENT: the server's Spec" : "INVALID_ARGUMENT: a Step",
                      0) == 0);
    CHECK(result.spec.observations.empty() == is_spec);
    ++(is_spec ? specs : steps);
  }
  CHECK(good >= 3);
  CHECK(specs >= 20);
  CHECK(steps >= 20);
}

TEST_CASE("decoder: no message costs more than twice its size and 64 KiB") {
  std::string good = Tag(1, 0) + "\2" + Tag(2, 0) + "\3" + Field(4, "discrete") + Field(5, "\6") +
                     Tag(6, 0) + "\1" + Field(7, "Test-v0");
  const auto leaf = [](int i, size_t name, size_t axes) {
    std::string text = std::to_string(i);
    text.resize(name, 'x');
    return Field(3, Field(1, text) + Tag(2, 0) + "\1" + Field(3, std::string(axes, '\1')));
  };
  std::string many, unnamed;
  for (int i = 0; i < 5000; ++i) many += leaf(i, 5, 16);
  for (int i = 0; i < 256; ++i) unnamed += leaf(i, 255, 16);
  std::vector<std::string> messages = {good + many,
                                       good + unnamed,
                                       good + leaf(0, 5, 100'000),
                                       good + leaf(0, 100'000, 1),
                                       Field(7, std::string(1 << 20, 'x')),
                                       Field(5, std::string(1 << 20, '\1'))};
  for (int field : {0, 1, 3, 9, 15}) {
    for (int type = 0; type < 8; ++type) {
      for (const std::string& rest : {std::string(), std::string("\1"), std::string(1, '\0')}) {
        messages.emplace_back();
        for (int i = 0; i < 100'000; ++i) messages.back() += Tag(field, type) + rest;
      }
    }
  }
  for (int field = 1; field <= 9; ++field) {  // large arrays where few numbers are expected
    messages.push_back(Field(field, std::string(1 << 20, '\0')));
    messages.push_back(Field(field, std::string(4, '\0')) +
                       Field(field, std::string(1 << 20, '\0')));
  }
  int taken = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    CAPTURE(i);
    const Message message(messages[i].begin(), messages[i].end());
    for (const Message& first : {message, Message(good.begin(), good.end())}) {
      ReplayResult result;
      try {
        Replay({first, message}, &result);
      } catch (const StreamError&) {
      }
      CHECK(result.excess_bytes <= 1 << 16);
      taken += result.spec.observations.size() == 256;
    }
  }
  CHECK(taken == 1);  // only the largest Spec that is allowed
}

TEST_CASE("decoder: text of a server is made safe for a log") {
  CHECK(Printable("plain, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\nnext line") ==
        "plain, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\nnext line");
  CHECK(Printable("\x1b[2J\x07\r\x7f") == "?[2J???");
  CHECK(Printable(std::string_view("a\0b", 3)) == "a?b");
  CHECK(Printable("\xff\x80") == "??");
  CHECK(Printable("\xe2\x82") == "??");              // cut off
  CHECK(Printable("\xc0\xaf \xc1\x81") == "?? ??");  // longer than necessary
  CHECK(Printable("\xe0\x9f\xbf") == "???");
  CHECK(Printable("\xf0\x8f\xbf\xbf") == "????");
  CHECK(Printable("\xed\xa0\x80") == "???");       // half of a surrogate pair
  CHECK(Printable("\xf4\x90\x80\x80") == "????");  // beyond Unicode
  CHECK(Printable("\xf5\x80\x80\x80") == "????");
  CHECK(Printable("\xc2\x9b[2J") == "??[2J");  // a terminal's escape sequence in one character
}

}  // namespace
}  // namespace torchbeast
