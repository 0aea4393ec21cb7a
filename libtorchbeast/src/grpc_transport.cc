// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "grpc_transport.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>

#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "decoder.h"
#include "encoder.h"

namespace torchbeast {
namespace {

constexpr int kMaxSpecBytes = 1 << 20;
// A connection that is not established by then is tried again. gRPC's default of 20 seconds would
// let actors wait long after a link that was down is up again.
constexpr int kConnectMs = 3'000;

std::string CodeName(grpc::StatusCode code) {
  static const char* const names[] = {"OK",
                                      "CANCELLED",
                                      "UNKNOWN",
                                      "INVALID_ARGUMENT",
                                      "DEADLINE_EXCEEDED",
                                      "NOT_FOUND",
                                      "ALREADY_EXISTS",
                                      "PERMISSION_DENIED",
                                      "RESOURCE_EXHAUSTED",
                                      "FAILED_PRECONDITION",
                                      "ABORTED",
                                      "OUT_OF_RANGE",
                                      "UNIMPLEMENTED",
                                      "INTERNAL",
                                      "UNAVAILABLE",
                                      "DATA_LOSS",
                                      "UNAUTHENTICATED"};
  const size_t i = static_cast<size_t>(code);
  return i < std::size(names) ? names[i] : "code " + std::to_string(i);
}

StreamError ErrorOf(const grpc::Status& status) {
  if (status.ok()) return StreamError("OK", "the server ended the stream");
  return StreamError(CodeName(status.error_code()), Printable(status.error_message()));
}

// Starts gRPC for as long as the process lives, with the strategy that each waiting thread polls
// its own connection. With gRPC's default, one epoll for all, threads wake each other, and there
// are 1.2 times fewer steps a second. The environment variable is gRPC's only way to choose. It is
// unset at once, so that child processes do not get it.
void StartGrpc() {
  static const bool started = [] {
    constexpr const char* kStrategy = "GRPC_POLL_STRATEGY";
    const bool chosen = std::getenv(kStrategy) != nullptr;
    if (!chosen) setenv(kStrategy, "poll", 1);
    grpc_init();
    if (!chosen) unsetenv(kStrategy);
    return true;
  }();
  static_cast<void>(started);
}

using MaybeTls = std::optional<Tls>;

bool IsUnixSocket(const std::string& address) { return address.rfind("unix:", 0) == 0; }

// Returns what a failed connection may mean, because gRPC's errors say little about TLS.
std::string Hint(const std::string& address, const MaybeTls& tls, const std::string& error) {
  const auto says = [&](const char* words) { return error.find(words) != std::string::npos; };
  if (IsUnixSocket(address) || !says("failed to connect")) return "";
  const bool hung_up = says("Socket closed") || says("Connection reset");
  if (!tls) return hung_up ? " (perhaps the server wants TLS: --tls_cert)" : "";
  if (hung_up) return " (perhaps the server does not accept this --tls_cert; its log says why)";
  if (says("wrong version number")) return " (the server speaks no TLS)";
  if (says("not in peer certificate")) return " (its certificate is another host's)";
  if (says("certificate verify failed")) {
    return " (the server's certificate has expired, is no server's, or not of --tls_ca)";
  }
  return "";
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int receive_bytes,
                                           const MaybeTls& tls) {
  StartGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(receive_bytes);
  // Allows no compression. gRPC checks a message's size only after it has unpacked it, which can be
  // a thousand times as large.
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  // Gives each channel a connection of its own, because a shared one would share gRPC's back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Connects to the given address directly, even if http_proxy is set.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  // Notices within 25 seconds that a machine is gone.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 15'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto credentials = tls && !IsUnixSocket(address)
                               ? grpc::SslCredentials({tls->ca, tls->key, tls->cert})
                               : grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

// A gRPC call whose messages are plain bytes for encoder.h and decoder.h. So the build needs no
// protoc, and no message takes many times its size, as one with thousands of empty fields would in
// protobuf's parser. Describe uses it too: a server cannot tell a stream of one question and one
// answer from a unary call.
using Call = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

std::unique_ptr<Call> Start(const char* method, grpc::Channel* channel,
                            grpc::ClientContext* context) {
  using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
  const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::BIDI_STREAMING);
  return std::unique_ptr<Call>(Factory::Create(channel, rpc, context));
}

bool Send(const std::string& message, Call* call) {
  const grpc::Slice slice(message);
  return call->Write(grpc::ByteBuffer(&slice, 1));
}

// Copies the message's bytes into `memory`, which is used for every message, and frees gRPC's copy.
std::string_view Join(grpc::ByteBuffer* message, std::string* memory) {
  std::vector<grpc::Slice> slices;
  if (!message->Dump(&slices).ok())
    throw StreamError("INTERNAL", "a message that gRPC cannot read");
  memory->clear();
  memory->reserve(message->Length());
  for (const grpc::Slice& slice : slices) {
    memory->append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  message->Clear();
  return *memory;
}

Spec DescribeIn(const std::string& address, grpc::ClientContext* context, const MaybeTls& tls) {
  const auto channel = MakeChannel(address, kMaxSpecBytes, tls);
  const auto call = Start("/rpcenv.RPCEnvServer/Describe", channel.get(), context);
  grpc::ByteBuffer message, surplus;
  if (Send("", call.get())) call->WritesDone();  // a DescribeRequest has no fields
  const bool answered = call->Read(&message);
  const bool twice = answered && call->Read(&surplus);
  if (twice) context->TryCancel();  // otherwise the call may never end
  const grpc::Status status = call->Finish();
  if (twice) throw BadSpec("expected one answer, seen more");
  if (!status.ok()) {
    const std::string text = Printable(status.error_message());
    throw StreamError(CodeName(status.error_code()), text + Hint(address, tls, text));
  }
  if (!answered) throw BadSpec("expected one answer, seen none");
  std::string memory;
  return DecodeSpec(Join(&message, &memory));
}

// A stream, and before it a Describe call, to one server.
class GrpcStream : public Stream {
 public:
  GrpcStream(std::string address, MaybeTls tls)
      : address_(std::move(address)), tls_(std::move(tls)) {}
  ~GrpcStream() override {
    if (!stream_) return;
    context_.TryCancel();
    if (!finished_) stream_->Finish();
  }

  Spec Open() override {
    const Spec spec = DescribeIn(address_, &describe_context_, tls_);
    const int64_t row_bytes = spec.num_envs * spec.row_bytes() + 1024;
    if (row_bytes >= kMaxBytes) throw BadSpec("a row of " + std::to_string(row_bytes) + " bytes");
    // Adds 32 bytes for each environment's other numbers, and the tags and lengths of the fields.
    const int64_t step_bytes = spec.num_envs * (spec.wire_bytes() + 32) + 1024;
    channel_ = MakeChannel(address_, static_cast<int>(step_bytes), tls_);
    stream_ = Start("/rpcenv.RPCEnvServer/Stream", channel_.get(), &context_);
    return spec;
  }

  void Write(const Array& actions) override {
    EncodeAction(actions, &action_);
    if (!Send(action_, stream_.get())) Fail();
  }

  StepView Read() override {
    if (!stream_->Read(&message_)) Fail();
    return decoder_.Decode(Join(&message_, &memory_));
  }

  void Cancel() override {
    describe_context_.TryCancel();
    context_.TryCancel();
  }

 private:
  // Throws the error with which the server or gRPC ended the stream.
  [[noreturn]] void Fail() {
    finished_ = true;
    while (stream_->Read(&message_)) {  // gRPC gives the status after the last message
    }
    throw ErrorOf(stream_->Finish());
  }

  const std::string address_;
  const MaybeTls tls_;
  grpc::ClientContext describe_context_, context_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Call> stream_;
  bool finished_ = false;
  std::string action_;  // the newest Action's bytes
  grpc::ByteBuffer message_;
  std::string memory_;  // the newest Step's bytes
  StepDecoder decoder_;
};

}  // namespace

Spec Describe(const std::string& address, std::chrono::milliseconds timeout, const MaybeTls& tls) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  return DescribeIn(address, &context, tls);
}

std::unique_ptr<Stream> GrpcTransport::NewStream(const std::string& address) {
  return std::make_unique<GrpcStream>(address, tls_);
}

}  // namespace torchbeast
