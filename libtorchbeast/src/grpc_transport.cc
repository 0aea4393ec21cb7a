// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "grpc_transport.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>
#include <utility>

#include "rpcenv.grpc.pb.h"

namespace torchbeast {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 31;  // protobuf's limit for a message
constexpr int64_t kMostEnvs = 1 << 20;
constexpr int64_t kMostActions = int64_t{1} << 31;  // they travel as int32
constexpr int kDescribeBytes = 1 << 20;             // a Spec is small
// Who is not connected by then begins again: gRPC's 20 seconds would outlast a link that was down.
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
  return StreamError(CodeName(status.error_code()), status.error_message());
}

StreamError BadSpec(const std::string& what) {
  return StreamError("INVALID_ARGUMENT", "the server's Spec: " + what);
}

// gRPC, for as long as the process lives, with a thread that waits polling its own connection.
// gRPC's default, one epoll for all, wakes one thread through another: 1.2 times fewer steps a
// second. The variable is gRPC's only way to choose; processes started from here do not get it.
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

// What it may mean that no connection came about; gRPC says little of TLS.
std::string Hint(const std::string& address, const MaybeTls& tls, const std::string& error) {
  const auto says = [&](const char* words) { return error.find(words) != std::string::npos; };
  if (IsUnixSocket(address) || !says("failed to connect")) return "";
  const bool hung_up = says("Socket closed") || says("Connection reset");
  if (!tls) return hung_up ? " (perhaps the server wants TLS: --tls_cert)" : "";
  if (hung_up) return " (perhaps the server does not accept this --tls_cert: its log says)";
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
  // A connection of its own for each channel: shared ones would share gRPC's back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // To the address that was given, and nobody in between, whatever http_proxy says.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  // Notices within 25 seconds a machine that vanished without a word.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 15'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto credentials = tls && !IsUnixSocket(address)
                               ? grpc::SslCredentials({tls->ca, tls->key, tls->cert})
                               : grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

Spec DescribeIn(const std::string& address, grpc::ClientContext* context, const MaybeTls& tls) {
  const auto stub = rpcenv::RPCEnvServer::NewStub(MakeChannel(address, kDescribeBytes, tls));
  rpcenv::Spec spec;
  const grpc::Status status = stub->Describe(context, rpcenv::DescribeRequest(), &spec);
  if (!status.ok()) {
    const std::string& text = status.error_message();
    throw StreamError(CodeName(status.error_code()), text + Hint(address, tls, text));
  }
  return ParseSpec(spec);
}

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
    // Observations, 32 bytes for each environment's other numbers, and the fields' heads.
    const auto with_others = [&](int64_t bytes) { return spec.num_envs * (bytes + 32) + 1024; };
    const int64_t row_bytes = with_others(spec.observation_bytes());
    if (row_bytes >= kMostBytes) throw BadSpec("a row of " + std::to_string(row_bytes) + " bytes");
    const int step_bytes = static_cast<int>(with_others(spec.wire_bytes()));
    stub_ = rpcenv::RPCEnvServer::NewStub(MakeChannel(address_, step_bytes, tls_));
    stream_ = stub_->Stream(&context_);
    return spec;
  }

  void Write(const std::vector<int32_t>& actions) override {
    action_.mutable_actions()->Assign(actions.begin(), actions.end());
    if (!stream_->Write(action_)) Fail();
  }

  StepView Read() override {
    if (!stream_->Read(&step_)) Fail();
    return ViewOf(step_);
  }

  void Cancel() override {
    describe_context_.TryCancel();
    context_.TryCancel();
  }

 private:
  [[noreturn]] void Fail() {
    finished_ = true;
    while (stream_->Read(&step_)) {  // the status comes after the last message
    }
    throw ErrorOf(stream_->Finish());
  }

  const std::string address_;
  const MaybeTls tls_;
  grpc::ClientContext describe_context_, context_;
  std::unique_ptr<rpcenv::RPCEnvServer::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<rpcenv::Action, rpcenv::Step>> stream_;
  bool finished_ = false;
  rpcenv::Action action_;
  rpcenv::Step step_;  // one for all, so that its memory is used again
};

DType DTypeOf(const rpcenv::Leaf& leaf) {
  switch (leaf.dtype()) {
    case rpcenv::BOOL:
      return {Kind::kBool, 8};
    case rpcenv::UINT8:
      return {Kind::kUInt, 8};
    case rpcenv::INT8:
      return {Kind::kInt, 8};
    case rpcenv::UINT16:
      return {Kind::kUInt, 16};
    case rpcenv::INT16:
      return {Kind::kInt, 16};
    case rpcenv::UINT32:
      return {Kind::kUInt, 32};
    case rpcenv::INT32:
      return {Kind::kInt, 32};
    case rpcenv::UINT64:
      return {Kind::kUInt, 64};
    case rpcenv::INT64:
      return {Kind::kInt, 64};
    case rpcenv::FLOAT16:
      return {Kind::kFloat, 16};
    case rpcenv::BFLOAT16:
      return {Kind::kBFloat, 16};
    case rpcenv::FLOAT32:
      return {Kind::kFloat, 32};
    case rpcenv::FLOAT64:
      return {Kind::kFloat, 64};
    default:
      throw BadSpec(leaf.name() + ": dtype " + std::to_string(leaf.dtype()) + " is unknown");
  }
}

Leaf ParseLeaf(const rpcenv::Leaf& message) {
  Leaf leaf{message.name(), DTypeOf(message), {}};
  int64_t bytes = leaf.dtype.size();
  for (int64_t size : message.shape()) {
    if (size < 0 || size >= kMostBytes) {
      throw BadSpec(leaf.name + ": expected sizes from 0 to 2^31, seen " + std::to_string(size));
    }
    leaf.shape.push_back(size);
    bytes *= std::max<int64_t>(size, 1);  // also strides must not overflow
    if (bytes >= kMostBytes) throw BadSpec(leaf.name + ": expected less than 2^31 bytes");
  }
  leaf.stack = std::max<int64_t>(message.stack(), 1);
  if (leaf.stack > 1 && (leaf.shape.empty() || leaf.shape[0] != leaf.stack)) {
    throw BadSpec(leaf.name + ": expected the shape of a stack of " + std::to_string(leaf.stack) +
                  " frames, [" + std::to_string(leaf.stack) + ", ...], seen " +
                  Describe(leaf.dtype, leaf.shape));
  }
  return leaf;
}

}  // namespace

Spec ParseSpec(const rpcenv::Spec& message) {
  // The rows' other keys (DESIGN section 3).
  static const std::set<std::string> taken = {"reward",         "done",         "terminated",
                                              "truncated",      "episode_over", "episode_step",
                                              "episode_return", "last_action",  "action",
                                              "policy_logits",  "baseline",     "policy_version"};
  if (message.protocol() != kProtocol) {
    throw BadSpec("expected protocol " + std::to_string(kProtocol) + ", seen " +
                  std::to_string(message.protocol()));
  }
  Spec spec;
  std::set<std::string> names;
  for (const rpcenv::Leaf& leaf : message.observations()) {
    spec.observations.push_back(ParseLeaf(leaf));
    if (spec.observation_bytes() >= kMostBytes) throw BadSpec("expected less than 2^31 bytes");
    const bool is_state = leaf.name().rfind("core_state/", 0) == 0;
    if (leaf.name().empty() || is_state || taken.count(leaf.name()) ||
        !names.insert(leaf.name()).second) {
      throw BadSpec("an observation may not be called '" + leaf.name() + "', or not twice");
    }
  }
  spec.num_envs = message.num_envs();
  if (spec.num_envs < 1 || spec.num_envs > kMostEnvs) {
    throw BadSpec("num_envs: expected 1 to " + std::to_string(kMostEnvs) + ", seen " +
                  std::to_string(spec.num_envs));
  }
  spec.action_kind = message.action_kind();
  spec.action_sizes.assign(message.action_sizes().begin(), message.action_sizes().end());
  spec.frames_per_step = message.frames_per_step();
  spec.name = message.name();
  if (spec.action_kind != "discrete" || spec.action_sizes.size() != 1 || spec.action_sizes[0] < 1 ||
      spec.action_sizes[0] > kMostActions) {
    throw BadSpec("expected discrete actions of one size, 1 to 2^31, seen " + spec.describe());
  }
  if (spec.frames_per_step < 1) throw BadSpec("frames_per_step: expected at least 1, seen 0");
  return spec;
}

StepView ViewOf(const rpcenv::Step& step) {
  const auto span = [](const auto& field) {
    return Span<std::decay_t<decltype(*field.data())>>{field.data(), field.size()};
  };
  StepView view;
  view.observations = step.observations();
  view.reward = span(step.reward());
  view.done = span(step.done());
  view.terminated = span(step.terminated());
  view.truncated = span(step.truncated());
  view.episode_over = span(step.episode_over());
  view.episode_step = span(step.episode_step());
  view.episode_return = span(step.episode_return());
  view.environment_seconds = step.environment_seconds();
  return view;
}

Spec Describe(const std::string& address, std::chrono::milliseconds timeout, const MaybeTls& tls) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  return DescribeIn(address, &context, tls);
}

std::unique_ptr<Stream> GrpcTransport::NewStream(const std::string& address) {
  return std::make_unique<GrpcStream>(address, tls_);
}

}  // namespace torchbeast
