// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Tests what comes from outside: messages of servers, and arrays of other libraries. It is built
// with AddressSanitizer only, because gRPC and protobuf are not instrumented for ThreadSanitizer.
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <limits>
#include <random>

#include "decoder.h"
#include "dlpack.h"
#include "encoder.h"
#include "grpc_transport.h"
#include "rollout.h"
#include "rpcenv.grpc.pb.h"
#include "testing.h"

namespace torchbeast {
namespace {

rpcenv::Leaf* AddLeaf(rpcenv::Spec* spec, const std::string& name, rpcenv::DType dtype,
                      const std::vector<int64_t>& shape) {
  rpcenv::Leaf* leaf = spec->add_observations();
  leaf->set_name(name);
  leaf->set_dtype(dtype);
  for (int64_t size : shape) leaf->add_shape(size);
  return leaf;
}

rpcenv::Spec GoodSpec() {
  rpcenv::Spec spec;
  spec.set_protocol(kProtocol);
  spec.set_num_envs(3);
  AddLeaf(&spec, "frame", rpcenv::UINT8, {2, 2});
  AddLeaf(&spec, "flag", rpcenv::BOOL, {});
  AddLeaf(&spec, "inner/x", rpcenv::FLOAT32, {2});
  spec.set_action_kind("discrete");
  spec.add_action_sizes(6);
  spec.set_frames_per_step(4);
  spec.set_name("Test-v0");
  return spec;
}

rpcenv::Step GoodStep(bool first) {
  rpcenv::Step step;
  std::string observations(3 * 13, 1);
  step.set_observations(observations);
  step.set_environment_seconds(0.5);
  for (int n = 0; n < 3; ++n) {
    step.add_reward(n);
    step.add_done(first);
    step.add_terminated(n == 0);
    step.add_truncated(n == 1);
    step.add_episode_over(n == 2);
    step.add_episode_step(n);
    step.add_episode_return(n);
  }
  return step;
}

Spec ParseSpec(const rpcenv::Spec& message) { return DecodeSpec(message.SerializeAsString()); }

std::string SpecError(const std::function<void(rpcenv::Spec*)>& change) {
  rpcenv::Spec spec = GoodSpec();
  change(&spec);
  return ErrorOf<StreamError>([&] { ParseSpec(spec); });
}

TEST_CASE("wire: every dtype is known, others are refused") {
  const std::vector<std::pair<rpcenv::DType, std::string>> dtypes = {
      {rpcenv::BOOL, "bool"},       {rpcenv::UINT8, "uint8"},       {rpcenv::INT8, "int8"},
      {rpcenv::UINT16, "uint16"},   {rpcenv::INT16, "int16"},       {rpcenv::UINT32, "uint32"},
      {rpcenv::INT32, "int32"},     {rpcenv::UINT64, "uint64"},     {rpcenv::INT64, "int64"},
      {rpcenv::FLOAT16, "float16"}, {rpcenv::BFLOAT16, "bfloat16"}, {rpcenv::FLOAT32, "float32"},
      {rpcenv::FLOAT64, "float64"}};
  CHECK(dtypes.size() == rpcenv::DType_ARRAYSIZE - 1);
  for (const auto& [dtype, name] : dtypes) {
    rpcenv::Spec spec = GoodSpec();
    AddLeaf(&spec, "more", dtype, {3});
    CHECK(ParseSpec(spec).observations.back().dtype.name() == name);
  }
  for (int dtype : {0, 14, -1, 1 << 30}) {
    CHECK(
        SpecError([=](auto* spec) { AddLeaf(spec, "x", static_cast<rpcenv::DType>(dtype), {}); }) ==
        "INVALID_ARGUMENT: the server's Spec: x: dtype " + std::to_string(dtype) + " is unknown");
  }
}

TEST_CASE("wire: a Spec of another protocol or of other actions is refused") {
  CHECK(SpecError([](auto* spec) { spec->set_protocol(1); }) ==
        "INVALID_ARGUMENT: the server's Spec: expected protocol 2, seen 1");
  CHECK(Has(SpecError([](auto* spec) { spec->Clear(); }), "expected protocol 2, seen 0"));
  // The corpus has other wrong actions, and what else a Spec can have wrong.
  const std::string actions = "expected discrete actions of one size, multi_discrete ones";
  CHECK(Has(SpecError([](auto* spec) { spec->set_action_kind("tuple"); }), actions));
}

TEST_CASE("wire: each kind of actions has its dtype and shape") {
  const auto with = [](const std::string& kind, const Shape& sizes) {
    rpcenv::Spec spec = GoodSpec();
    spec.set_action_kind(kind);
    spec.mutable_action_sizes()->Assign(sizes.begin(), sizes.end());
    return DecodeSpec(spec.SerializeAsString());
  };
  CHECK(with("discrete", {7}).MakeActions(2).describe() == "int64[1, 2]");
  CHECK(with("multi_discrete", {7, 2, 5}).MakeActions(2).describe() == "int64[1, 2, 3]");
  CHECK(with("box", {6}).MakeActions(2).describe() == "float32[1, 2, 6]");
}

TEST_CASE("wire: an observation's size is less than 2^31 bytes") {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto error = [](rpcenv::DType dtype, const std::vector<int64_t>& shape) {
    return SpecError([&](auto* spec) { AddLeaf(spec, "big", dtype, shape); });
  };
  for (int64_t size : {int64_t{-1}, kMost, std::numeric_limits<int64_t>::max(),
                       std::numeric_limits<int64_t>::min()}) {
    CHECK(error(rpcenv::UINT8, {size}) ==
          "INVALID_ARGUMENT: the server's Spec: big: expected sizes from 0 to 2^31, seen " +
              std::to_string(size));
    CHECK(Has(error(rpcenv::UINT8, {0, size}), "expected sizes"));
  }
  const std::string bytes = "big: expected less than 2^31 bytes";
  CHECK(Has(error(rpcenv::UINT8, {1 << 16, 1 << 15}), bytes));
  CHECK(Has(error(rpcenv::FLOAT64, {1 << 28}), bytes));
  rpcenv::Spec spec = GoodSpec();
  AddLeaf(&spec, "big", rpcenv::UINT8, {1 << 30});
  AddLeaf(&spec, "none", rpcenv::UINT8, {1 << 30, 0});
  CHECK(ParseSpec(spec).observation_bytes() == (1 << 30) + 13);
}

TEST_CASE("wire: a stack of frames has as many as its shape says") {
  rpcenv::Spec message = GoodSpec();
  AddLeaf(&message, "one", rpcenv::UINT8, {2, 5})->set_stack(1);
  AddLeaf(&message, "four", rpcenv::INT16, {4, 5})->set_stack(4);
  AddLeaf(&message, "numbers", rpcenv::UINT8, {3})->set_stack(3);
  AddLeaf(&message, "nothing", rpcenv::UINT8, {2, 0})->set_stack(2);
  const Spec spec = ParseSpec(message);
  CHECK(spec.observations[0].stack == 1);
  CHECK(spec.observations[3] == Leaf{"one", kUInt8, {2, 5}});
  CHECK(spec.observations[4] == Leaf{"four", {Kind::kInt, 16}, {4, 5}, 4});
  CHECK(spec.observation_bytes() == 13 + 10 + 40 + 3);
  CHECK(spec.wire_bytes() == 13 + 10 + 10 + 1);
  const auto error = [](const std::vector<int64_t>& shape, uint32_t stack) {
    return SpecError([&](auto* s) { AddLeaf(s, "x", rpcenv::UINT8, shape)->set_stack(stack); });
  };
  const std::string start =
      "INVALID_ARGUMENT: the server's Spec: x: expected the shape of a stack ";
  CHECK(error({3, 5}, 4) == start + "of 4 frames, [4, ...], seen uint8[3, 5]");
  CHECK(error({}, 4) == start + "of 4 frames, [4, ...], seen uint8[]");
  CHECK(error({5, 4}, 4) == start + "of 4 frames, [4, ...], seen uint8[5, 4]");
  CHECK(error({0, 4}, 2) == start + "of 2 frames, [2, ...], seen uint8[0, 4]");
  CHECK(Has(error({4}, 4294967295u), "of 4294967295 frames"));
}

TEST_CASE("wire: names must not be empty, used twice or reserved for rows") {
  for (const char* name :
       {"", "frame", "reward", "done", "terminated", "truncated", "episode_over", "episode_step",
        "episode_return", "last_action", "action", "policy_logits", "baseline", "policy_version"}) {
    CHECK(SpecError([&](auto* spec) { AddLeaf(spec, name, rpcenv::UINT8, {}); }) ==
          "INVALID_ARGUMENT: the server's Spec: an observation may not be called '" +
              std::string(name) +
              "': expected a name that is not empty, not reserved and not used twice");
  }
}

void Mutate(std::string* bytes, std::mt19937* random) {
  const auto any = [&](size_t below) { return (*random)() % below; };
  for (size_t times = 1 + any(4); times > 0; --times) {
    const size_t at = any(bytes->size() + 1);
    switch (any(5)) {
      case 0:
        bytes->insert(at, 1 + any(4), static_cast<char>(any(256)));
        break;
      case 1:
        bytes->erase(at, 1 + any(4));
        break;
      case 2:
        if (at < bytes->size()) (*bytes)[at] = static_cast<char>(any(256));
        break;
      case 3:
        if (at < bytes->size()) (*bytes)[at] ^= static_cast<char>(1 << any(8));
        break;
      case 4:  // repeats a part, so that fields may come twice
        *bytes += bytes->substr(at, any(40));
        break;
    }
  }
}

// Checks that protobuf's own parser reads the same from the bytes as the decoder did.
void CheckLikeProtobufs(const std::string& bytes, const StepView& view) {
  rpcenv::Step message;
  REQUIRE(message.ParseFromString(bytes));
  CHECK(view.observations == message.observations());
  const auto same = [](const auto& span, const auto& field) {
    REQUIRE(span.size == field.size());
    for (int i = 0; i < field.size(); ++i) {  // compares bits, because NaNs are not equal
      CHECK(std::memcmp(span.data + i, field.data() + i, sizeof(*span.data)) == 0);
    }
  };
  same(view.reward, message.reward());
  same(view.done, message.done());
  same(view.terminated, message.terminated());
  same(view.truncated, message.truncated());
  same(view.episode_over, message.episode_over());
  same(view.episode_step, message.episode_step());
  same(view.episode_return, message.episode_return());
  const float seconds = message.environment_seconds();
  CHECK((view.environment_seconds == seconds || seconds != seconds));
}

void CheckLikeProtobufs(const std::string& bytes, const Spec& spec) {
  rpcenv::Spec message, again;
  REQUIRE(message.ParseFromString(bytes));
  again.set_protocol(kProtocol);
  again.set_num_envs(spec.num_envs);
  REQUIRE(message.observations_size() == static_cast<int>(spec.observations.size()));
  for (int i = 0; i < message.observations_size(); ++i) {
    rpcenv::Leaf* leaf = message.mutable_observations(i);
    leaf->set_stack(std::max(leaf->stack(), 1u));
    const Leaf& seen = spec.observations[i];
    AddLeaf(&again, seen.name, leaf->dtype(), seen.shape)->set_stack(seen.stack);
  }
  again.set_action_kind(spec.action_kind);
  for (int64_t size : spec.action_sizes) again.add_action_sizes(size);
  again.set_frames_per_step(spec.frames_per_step);
  again.set_name(spec.name);
  CHECK(google::protobuf::util::MessageDifferencer::Equals(message, again));
}

TEST_CASE("wire: any bytes are read as protobuf reads them, or refused with a StreamError") {
  const google::protobuf::LogSilencer silencer;
  std::mt19937 random(0);
  const std::string good_spec = GoodSpec().SerializeAsString();
  const std::string good_steps[] = {GoodStep(true).SerializeAsString(),
                                    GoodStep(false).SerializeAsString()};
  const Spec fixed = ParseSpec(GoodSpec());
  CheckLikeProtobufs(good_spec, fixed);
  StepDecoder decoder;
  for (const std::string& step : good_steps) CheckLikeProtobufs(step, decoder.Decode(step));
  int specs = 0, steps = 0, written = 0;
  for (int i = 0; i < 20000; ++i) {
    CAPTURE(i);
    std::string spec_bytes = good_spec, step_bytes = good_steps[i % 2];
    Mutate(&spec_bytes, &random);
    Mutate(&step_bytes, &random);
    Spec spec = fixed;
    try {
      spec = DecodeSpec(spec_bytes);
      ++specs;
      CheckLikeProtobufs(spec_bytes, spec);
      if (spec.observation_bytes() > 1000 || spec.num_envs > 100) spec = fixed;
    } catch (const StreamError&) {
    }
    for (const Spec& like : {fixed, spec}) {
      try {
        const StepView view = decoder.Decode(step_bytes);
        ++steps;
        CheckLikeProtobufs(step_bytes, view);
        const Array actions = like.MakeActions(like.num_envs);
        if (actions.bytes() > 0) std::memset(actions.data(), 0, actions.bytes());
        Rollout(like, like.num_envs, 1).WriteStep(i % 2, view, actions);
        ++written;
      } catch (const StreamError&) {
      }
    }
  }
  CHECK(specs > 500);  // enough are accepted
  CHECK(steps > 500);
  CHECK(written > 100);
}

// An environment server in this process.
class Server : public rpcenv::RPCEnvServer::Service {
 public:
  explicit Server(rpcenv::Spec spec) : spec_(std::move(spec)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~Server() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const {
    return "unix:/tmp/torchbeast-wire-test-" + std::to_string(getpid());
  }

  grpc::Status Describe(grpc::ServerContext*, const rpcenv::DescribeRequest*,
                        rpcenv::Spec* spec) override {
    *spec = spec_;
    return grpc::Status::OK;
  }
  grpc::Status Stream(grpc::ServerContext*,
                      grpc::ServerReaderWriter<rpcenv::Step, rpcenv::Action>* stream) override {
    stream->Write(GoodStep(true));
    rpcenv::Action action;
    while (stream->Read(&action)) {
      if (action.actions_size() != 3 || action.actions(2) == 5) {
        return {grpc::StatusCode::INVALID_ARGUMENT, "no such action"};
      }
      stream->Write(GoodStep(false));
    }
    return grpc::Status::OK;
  }

 private:
  const rpcenv::Spec spec_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("wire: an Action is what protobuf writes") {
  std::mt19937_64 random(0);
  std::string message;
  for (int64_t count : {1, 2, 63, 64, 1000}) {
    const Array numbers = Array::Empty(kInt64, {count});
    const Array reals = Array::Empty(kFloat32, {count / 2, 2});
    rpcenv::Action of_numbers, of_reals;
    for (int64_t i = 0; i < count; ++i) {  // of each encoded length
      numbers.as<int64_t>()[i] = static_cast<int64_t>((random() >> 33) >> random() % 32);
      of_numbers.add_actions(static_cast<int32_t>(numbers.as<int64_t>()[i]));
    }
    for (int64_t i = 0; i < count / 2 * 2; ++i) {
      reals.as<float>()[i] = static_cast<float>(i) - 0.1f;
      of_reals.add_reals(reals.as<float>()[i]);
    }
    EncodeAction(numbers, &message);
    CHECK(message == of_numbers.SerializeAsString());
    if (count < 2) continue;  // protobuf omits fields without values
    EncodeAction(reals, &message);
    CHECK(message == of_reals.SerializeAsString());
  }
}

TEST_CASE("grpc: a stream carries Steps and Actions, and the server's error") {
  const Server server(GoodSpec());
  CHECK(Describe(server.address(), std::chrono::seconds(60)).name == "Test-v0");
  const auto stream = GrpcTransport().NewStream(server.address());
  CHECK(stream->Open().num_envs == 3);
  CHECK(stream->Read().done.data[0]);
  for (int i = 0; i < 3; ++i) {
    stream->Write(ActionsOf({0, 1, i}));
    CHECK(!stream->Read().done.data[0]);
  }
  stream->Write(ActionsOf({0, 0, 5}));
  CHECK(ErrorOf<StreamError>([&] { stream->Read(); }) == "INVALID_ARGUMENT: no such action");
}

TEST_CASE("grpc: Cancel ends a Read that waits, and later calls") {
  const Server server(GoodSpec());
  const auto stream = GrpcTransport().NewStream(server.address());
  stream->Open();
  stream->Read();
  Threads threads;
  threads.Start([&] {
    const std::string error = ErrorOf<StreamError>([&] { stream->Read(); });
    Require(Has(error, "CANCELLED: "), error);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // it probably waits by now
  stream->Cancel();
  threads.Join();
  const auto early = GrpcTransport().NewStream(server.address());
  early->Cancel();
  CHECK(Has(ErrorOf<StreamError>([&] { early->Open(); }), "CANCELLED: "));
}

TEST_CASE("grpc: a server that is not there is UNAVAILABLE") {
  CHECK(Has(
      ErrorOf<StreamError>([] { Describe("unix:/tmp/no-such-socket", std::chrono::seconds(60)); }),
      "UNAVAILABLE: "));
}

TEST_CASE("grpc: a Spec whose Steps are too large is refused, even if their size overflows") {
  for (uint32_t num_envs : {2u, 4294967295u}) {
    rpcenv::Spec spec = GoodSpec();
    spec.clear_observations();
    AddLeaf(&spec, "big", rpcenv::UINT8, {(int64_t{1} << 31) - 1});
    spec.set_num_envs(num_envs);
    const Server server(spec);
    const auto stream = GrpcTransport().NewStream(server.address());
    CHECK(Has(ErrorOf<StreamError>([&] { stream->Open(); }), "the server's Spec: "));
  }
}

// A DLTensor over `values`, with the given strides (in elements).
struct Foreign {
  Foreign(std::vector<int16_t> values, Shape shape, Shape strides, int64_t first = 0)
      : values(std::move(values)), shape(std::move(shape)), strides(std::move(strides)) {
    tensor.data = this->values.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(this->shape.size());
    tensor.dtype = {0, 16, 1};
    tensor.shape = this->shape.data();
    tensor.strides = this->strides.empty() ? nullptr : this->strides.data();
    tensor.byte_offset = 2 * first;
  }

  std::vector<int16_t> values;
  Shape shape, strides;
  DLTensor tensor = {};
};

TEST_CASE("dlpack: contiguous memory is shared, other memory copied") {
  const auto values = [](Foreign foreign, bool shared) {
    const auto owner = std::make_shared<int>();
    const Array array = FromDLPack(foreign.tensor, owner);
    CHECK(array.shape() == foreign.shape);
    CHECK((owner.use_count() == 2) == shared);
    if (shared)
      CHECK(array.data() ==
            static_cast<uint8_t*>(foreign.tensor.data) + foreign.tensor.byte_offset);
    return Values<int16_t>(array);
  };
  using Numbers = std::vector<int16_t>;
  const Numbers six = {0, 1, 2, 3, 4, 5};
  CHECK(values({six, {2, 3}, {}}, true) == six);
  CHECK(values({six, {2, 3}, {3, 1}}, true) == six);
  CHECK(values({six, {1, 2, 1, 3}, {99, 3, -7, 1}}, true) ==
        six);  // strides of size 1 do not matter
  CHECK(values({six, {3, 2}, {1, 3}}, false) == Numbers{0, 3, 1, 4, 2, 5});
  CHECK(values({six, {2, 3}, {-3, 1}, 3}, false) == Numbers{3, 4, 5, 0, 1, 2});
  CHECK(values({six, {2, 3}, {0, 1}}, false) == Numbers{0, 1, 2, 0, 1, 2});  // expanded
  CHECK(values({six, {2, 2}, {}, 2}, true) == Numbers{2, 3, 4, 5});
  CHECK(values({six, {}, {}, 4}, true) == Numbers{4});
  CHECK(values({six, {0, 3}, {7, 7}}, true).empty());
  CHECK(values({{}, {2, 0}, {}}, true).empty());
}

TEST_CASE("dlpack: random strides give what indexing gives") {
  std::mt19937 random(0);
  std::vector<int16_t> values(400);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int16_t>(i);
  for (int i = 0; i < 300; ++i) {
    Shape shape, strides;
    for (size_t d = random() % 4; d > 0; --d) {
      shape.push_back(random() % 5);
      strides.push_back(static_cast<int64_t>(random() % 33) - 16);
    }
    const Foreign foreign(values, shape, strides, 200);
    std::vector<int16_t> expected;
    for (int64_t j = 0, count = NumElements(shape); j < count; ++j) {
      int64_t rest = j, at = 200;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) at += rest % shape[d] * strides[d];
      expected.push_back(values[at]);
    }
    CHECK(Values<int16_t>(FromDLPack(foreign.tensor, nullptr)) == expected);
  }
}

TEST_CASE("dlpack: only arrays of numbers in CPU memory are accepted") {
  const auto error = [](const std::function<void(DLTensor*)>& change) {
    Foreign foreign({1, 2}, {2}, {});
    change(&foreign.tensor);
    return ErrorOf<std::invalid_argument>([&] { FromDLPack(foreign.tensor, nullptr); });
  };
  CHECK(error([](auto* t) { t->device.device_type = 2; }) ==
        "expected an array in CPU memory, seen DLPack device type 2; use .cpu()");
  CHECK(error([](auto* t) { t->dtype.lanes = 4; }) == "expected a numeric dtype, seen int16");
  for (uint8_t bits : {0, 4}) {
    CHECK(Has(error([=](auto* t) { t->dtype.bits = bits; }), "expected a numeric dtype"));
  }
  CHECK(Has(error([](auto* t) { t->dtype.code = 3; }), "expected a numeric dtype"));
}

TEST_CASE("dlpack: there and back, in the same memory, alive until the deleter is called") {
  for (const Shape& shape : {Shape{2, 3}, Shape{}, Shape{2, 0, 3}, Shape{1}}) {
    const auto owner = std::make_shared<std::vector<float>>(6, 1.5f);
    DLManagedTensor* tensor = ToDLPack(Array(kFloat32, shape, owner, owner->data()));
    CHECK(owner.use_count() == 2);
    CHECK(tensor->dl_tensor.ndim == static_cast<int32_t>(shape.size()));
    {
      const Array array =
          FromDLPack(tensor->dl_tensor,
                     std::shared_ptr<void>(tensor, [](DLManagedTensor* t) { t->deleter(t); }));
      CHECK(array.shape() == shape);
      CHECK(array.dtype() == kFloat32);
      CHECK(array.as<float>() == owner->data());
      CHECK(owner.use_count() == 2);
    }
    CHECK(owner.use_count() == 1);
  }
  DLManagedTensor* tensor = ToDLPack(Make<int16_t>({2, 3, 4}, std::vector<int16_t>(24, 7)));
  CHECK(Shape(tensor->dl_tensor.strides, tensor->dl_tensor.strides + 3) == Shape{12, 4, 1});
  CHECK(static_cast<int16_t*>(tensor->dl_tensor.data)[23] == 7);
  tensor->deleter(tensor);
}

}  // namespace
}  // namespace torchbeast
