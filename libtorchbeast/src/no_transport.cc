// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Stands in for grpc_transport.cc in an extension that is built without gRPC C++. Queues and
// batches work. Whoever needs a server gets an error.
#include "grpc_transport.h"

namespace torchbeast {
namespace {

StreamError Missing() {
  return StreamError("UNIMPLEMENTED",
                     "the extension was built without gRPC C++, so it can reach no server; install "
                     "gRPC C++ and run `make build`");
}

}  // namespace

Spec Describe(const std::string&, std::chrono::milliseconds, const std::optional<Tls>&) {
  throw Missing();
}

std::unique_ptr<Stream> GrpcTransport::NewStream(const std::string&) { throw Missing(); }

}  // namespace torchbeast
