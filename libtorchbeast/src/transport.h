// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// What ActorPool needs of a connection. It is an interface, so that tests need no gRPC.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "array.h"
#include "spec.h"
#include "step.h"

namespace torchbeast {

// A stream ended. The text is "CODE: what happened", with gRPC's name of the code.
class StreamError : public std::runtime_error {
 public:
  StreamError(const std::string& code, const std::string& text)
      : std::runtime_error(code + ": " + text),
        is_away_(code == "UNAVAILABLE" || code == "DEADLINE_EXCEEDED" || code == "CANCELLED") {}
  // True if no server answered in time. False if one answered and something was wrong.
  bool is_away() const { return is_away_; }

 private:
  bool is_away_;
};

// A stream to a batch of environments. It is made for one thread, but any thread may call Cancel.
//
//   Open    connects and returns what the server has. The server then sends the first Step.
//   Write   sends actions, which are as Spec::MakeActions makes them.
//   Read    returns the next Step. It is valid until the next Read.
//   Cancel  ends the stream: a call that waits, and all later calls, throw StreamError.
//
// Open, Write and Read wait for the server, and throw StreamError if the stream ends.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Spec Open() = 0;
  virtual void Write(const Array& actions) = 0;
  virtual StepView Read() = 0;
  virtual void Cancel() = 0;
};

// Makes streams. Any thread may call NewStream, which does not wait for the server.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<Stream> NewStream(const std::string& address) = 0;
};

}  // namespace torchbeast
