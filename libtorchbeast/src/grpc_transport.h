// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Streams over gRPC, as rpcenv.proto has them. Knows gRPC and protobuf, and nothing of what is in a
// message.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transport.h"

namespace torchbeast {

// Who this side is, and whose certificates it believes: PEM texts.
struct Tls {
  std::string cert, key, ca;
};

// Asks a server what it has, within `timeout`; with `tls`, if given, unless at a Unix socket.
// Throws StreamError, also for a Spec that makes no sense.
Spec Describe(const std::string& address, std::chrono::milliseconds timeout,
              const std::optional<Tls>& tls = std::nullopt);

class GrpcTransport : public Transport {
 public:
  explicit GrpcTransport(std::optional<Tls> tls = std::nullopt) : tls_(std::move(tls)) {}
  std::unique_ptr<Stream> NewStream(const std::string& address) override;

 private:
  const std::optional<Tls> tls_;  // as Describe has it
};

}  // namespace torchbeast
