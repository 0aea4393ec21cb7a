// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Streams over gRPC, as rpcenv.proto has them. The only header that knows gRPC and protobuf.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rpcenv.pb.h"
#include "transport.h"

namespace torchbeast {

constexpr int kProtocol = 2;

// Asks a server what it has, within `timeout`. Throws StreamError, also for a Spec that makes no
// sense.
Spec Describe(const std::string& address, std::chrono::milliseconds timeout);

// A Spec as it came, checked. Throws StreamError.
Spec ParseSpec(const rpcenv::Spec& message);

// The parts of a Step as it came, valid as long as it.
StepView ViewOf(const rpcenv::Step& message);

class GrpcTransport : public Transport {
 public:
  std::unique_ptr<Stream> NewStream(const std::string& address) override;
};

}  // namespace torchbeast
