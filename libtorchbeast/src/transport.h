// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What ActorPool needs of a connection, so that it can be tested without gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "spec.h"

namespace torchbeast {

// A stream that ended, and why; "CODE: text".
class StreamError : public std::runtime_error {
 public:
  StreamError(const std::string& code, const std::string& text)
      : std::runtime_error(code + ": " + text),
        is_away_(code == "UNAVAILABLE" || code == "DEADLINE_EXCEEDED" || code == "CANCELLED") {}
  // Whether there was no server that answers, which is nobody's fault; else one said what is wrong.
  bool is_away() const { return is_away_; }

 private:
  bool is_away_;
};

template <class T>
struct Span {
  const T* data = nullptr;
  int64_t size = 0;
};

// A Step as it came: nothing is checked yet (Rollout::WriteStep does it).
struct StepView {
  std::string_view observations;
  Span<float> reward, episode_return;
  Span<bool> done, terminated, truncated, episode_over;
  Span<int32_t> episode_step;
  double environment_seconds = 0;  // as the server says; any number
};

// One life of one batch of environments. One thread uses it; any may call Cancel.
class Stream {
 public:
  virtual ~Stream() = default;
  // Connects and asks what there is; then the first Step is on its way. All three wait, and throw
  // StreamError.
  virtual Spec Open() = 0;
  virtual void Write(const Array& actions) = 0;  // as Spec::MakeActions has them
  virtual StepView Read() = 0;                   // valid until the next Read
  // Ends the stream: a call that waits, and all later ones, throw.
  virtual void Cancel() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<Stream> NewStream(const std::string& address) = 0;  // does not wait
};

}  // namespace torchbeast
