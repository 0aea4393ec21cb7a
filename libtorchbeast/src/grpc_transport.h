// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Streams over gRPC, as rpcenv.proto defines them. encoder.h and decoder.h know the messages.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transport.h"

namespace torchbeast {

// This side's certificate and key, and the CA certificates to trust, as PEM texts.
struct Tls {
  std::string cert, key, ca;
};

// Asks a server for its Spec. Uses TLS if `tls` is given and the address is no Unix socket. Throws
// StreamError if there is no answer within `timeout`, or if the Spec is invalid.
Spec Describe(const std::string& address, std::chrono::milliseconds timeout,
              const std::optional<Tls>& tls = std::nullopt);

// Makes streams over gRPC, with TLS as Describe uses it.
class GrpcTransport : public Transport {
 public:
  explicit GrpcTransport(std::optional<Tls> tls = std::nullopt) : tls_(std::move(tls)) {}
  std::unique_ptr<Stream> NewStream(const std::string& address) override;

 private:
  const std::optional<Tls> tls_;
};

}  // namespace torchbeast
