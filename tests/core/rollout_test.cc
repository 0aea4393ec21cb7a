// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// That all comes into its row, and the last row into the next rollout: pool_test.cc, "exact".
#include "rollout.h"

#include <limits>
#include <memory>

#include "testing.h"

namespace torchbeast {
namespace {

Spec TestSpec() {
  return {2,
          {{"a", kInt32, {2}}, {"none", kFloat32, {0}}, {"b", kBool, {3}}, {"c", kUInt8, {}}},
          "discrete",
          {5},
          1,
          "Test"};
}

// A Step of two environments that fits TestSpec. Its numbers begin at `x`.
struct TestStep {
  explicit TestStep(int x, bool first = false) {
    const std::vector<int32_t> a = {x, x + 1, x + 2, x + 3};
    observations.assign(reinterpret_cast<const char*>(a.data()), 16);
    for (char byte : {1, 0, 1, 0, 0, 1, x, x + 1}) observations.push_back(byte);
    for (int n = 0; n < 2; ++n) {
      reward.push_back(x + n + 0.5f);
      episode_return.push_back(x + n + 0.25f);
      episode_step.push_back(100 * x + n);
      done[n] = first;
    }
  }

  StepView view() const {
    StepView view;
    view.observations = observations;
    view.reward = {reward.data(), static_cast<int64_t>(reward.size())};
    view.episode_return = {episode_return.data(), static_cast<int64_t>(episode_return.size())};
    view.episode_step = {episode_step.data(), static_cast<int64_t>(episode_step.size())};
    view.done = {done, 2};
    view.terminated = {terminated, 2};
    view.truncated = {truncated, 2};
    view.episode_over = {episode_over, 2};
    return view;
  }

  std::string observations;
  std::vector<float> reward, episode_return;
  std::vector<int32_t> episode_step;
  bool done[2] = {}, terminated[2] = {true, false}, truncated[2] = {false, true},
       episode_over[2] = {true, true};
};

Dict Outputs(int64_t x) {
  return {{"action", Make<int64_t>({1, 2}, {x, x + 1})},
          {"logits", Make<float>({1, 2, 2}, {x + .0f, x + .1f, x + .2f, x + .3f})}};
}

template <class T>
std::vector<T> RowOf(const Dict& rollout, const std::string& name, int64_t t) {
  const Array* array = Find(rollout, name);
  REQUIRE_MESSAGE(array != nullptr, name);
  return Values<T>(array->Row(t));
}

// Two environments with a stack of 3 frames of two bytes, and a stack of 2 numbers.
Spec StackSpec() {
  Spec spec = TestSpec();
  spec.observations = {
      {"x", kUInt8, {}}, {"frame", kUInt8, {3, 2}, 3}, {"y", kInt32, {2}, 2}, {"z", kUInt8, {}}};
  return spec;
}

TEST_CASE("rollout: last_action is the action's dtype and shape, and 0 where an episode begins") {
  Spec spec = TestSpec();
  spec.action_kind = "box";
  spec.action_sizes = {3};
  Rollout making(spec, 2, 1);
  const Array actions = Make<float>({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  making.WriteStep(0, TestStep(1, true).view(), actions);
  making.WriteStep(1, TestStep(2).view(), actions);
  const Dict rollout = making.Finish({});
  CHECK(Find(rollout, "last_action")->describe() == "float32[2, 2, 3]");
  CHECK(RowOf<float>(rollout, "last_action", 0) == std::vector<float>(6, 0));
  CHECK(RowOf<float>(rollout, "last_action", 1) == std::vector<float>{1, 2, 3, 4, 5, 6});
}

// Returns Step t for StackSpec. The bytes of the two newest frames are t and 10 + t, and the newest
// numbers of `y` are 100 + t and 200 + t.
TestStep StackStep(int t, std::vector<int32_t> episode_step) {
  TestStep step(t, /*first=*/t == 0);
  const std::vector<int32_t> y = {100 + t, 200 + t};
  step.observations.clear();
  for (int byte : {7, 8, t, t, 10 + t, 10 + t}) step.observations.push_back(byte);
  step.observations.append(reinterpret_cast<const char*>(y.data()), 8);
  for (int byte : {t, t + 1}) step.observations.push_back(byte);
  step.episode_step = std::move(episode_step);
  return step;
}

TEST_CASE(
    "rollout: a Step has a stack's newest frame, and the older ones are those of the row before") {
  using Bytes = std::vector<uint8_t>;
  using Ints = std::vector<int32_t>;
  CHECK(StackSpec().observation_bytes() == 1 + 6 + 8 + 1);
  CHECK(StackSpec().wire_bytes() == 1 + 2 + 4 + 1);
  Rollout making(StackSpec(), 2, 3);
  const auto write = [&](int64_t row, int t, Ints episode_step) {
    const TestStep step = StackStep(t, std::move(episode_step));
    making.WriteStep(row, step.view(), ActionsOf({0, 0}));
    making.WriteOutputs(row, Outputs(t));
  };
  write(0, 0, {0, 0});
  write(1, 1, {1, 1});
  write(2, 2, {2, 0});  // environment 1 begins its next game; its `done` does not matter
  write(3, 3, {3, 1});
  const Dict first = making.Finish({});
  CHECK(Find(first, "frame")->describe() == "uint8[4, 2, 3, 2]");
  CHECK(Find(first, "y")->describe() == "int32[4, 2, 2]");
  CHECK(RowOf<uint8_t>(first, "frame", 0) == Bytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10});
  CHECK(RowOf<uint8_t>(first, "frame", 1) == Bytes{0, 0, 0, 0, 1, 1, 0, 0, 10, 10, 11, 11});
  CHECK(RowOf<uint8_t>(first, "frame", 2) == Bytes{0, 0, 1, 1, 2, 2, 0, 0, 0, 0, 12, 12});
  CHECK(RowOf<uint8_t>(first, "frame", 3) == Bytes{1, 1, 2, 2, 3, 3, 0, 0, 12, 12, 13, 13});
  CHECK(RowOf<int32_t>(first, "y", 0) == Ints{0, 100, 0, 200});
  CHECK(RowOf<int32_t>(first, "y", 2) == Ints{101, 102, 0, 202});
  CHECK(RowOf<int32_t>(first, "y", 3) == Ints{102, 103, 202, 203});
  CHECK(RowOf<uint8_t>(first, "x", 3) == Bytes{7, 8});
  CHECK(RowOf<uint8_t>(first, "z", 3) == Bytes{3, 4});
  making = making.Next();
  write(1, 4, {4, 2});
  CHECK(RowOf<uint8_t>(making.StepAt(1), "frame", 0) ==
        Bytes{2, 2, 3, 3, 4, 4, 12, 12, 13, 13, 14, 14});
}

TEST_CASE("rollout: an episode that begins within a game keeps the stack") {
  Rollout making(StackSpec(), 2, 1);
  making.WriteStep(0, StackStep(0, {0, 0}).view(), ActionsOf({0, 0}));
  TestStep step = StackStep(1, {1, 1});
  step.done[0] = step.done[1] = true;
  making.WriteStep(1, step.view(), ActionsOf({0, 0}));
  CHECK(RowOf<uint8_t>(making.StepAt(1), "frame", 0) ==
        std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 0, 0, 10, 10, 11, 11});
}

// Returns the error of a Step in row t of a rollout, or "" if it is taken.
std::string ErrorIn(const StepView& view, int64_t t = 1, const Spec& spec = TestSpec()) {
  try {
    Rollout(spec, 2, 2).WriteStep(t, view, ActionsOf({0, 0}));
  } catch (const StreamError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("decoder: the first Step of stacks is the first of their games") {
  CHECK(ErrorIn(StackStep(0, {0, 5}).view(), 0, StackSpec()) ==
        "INVALID_ARGUMENT: a Step's episode_step, at a reset: expected 0 everywhere, seen 5");
  CHECK(ErrorIn(TestStep(1, true).view(), 0) == "");  // has no stacks
  TestStep step = StackStep(0, {0, 0});
  step.observations.resize(32);  // has whole stacks
  CHECK(ErrorIn(step.view(), 0, StackSpec()) ==
        "INVALID_ARGUMENT: a Step's observations: expected 16 bytes, seen 32");
}

TEST_CASE("decoder: bools are checked in a stack, and behind it") {
  Spec spec = StackSpec();
  spec.observations = {{"flags", kBool, {2, 3}, 2}, {"number", kUInt8, {2}}, {"b", kBool, {}}};
  for (int i = 0; i < 12; ++i) {
    CAPTURE(i);
    TestStep step(0, true);
    step.episode_step = {0, 0};
    step.observations.assign(12, 1);
    step.observations[i] = 2;
    const bool is_bool = i < 6 || i >= 10;
    const std::string name = i < 6 ? "flags" : "b", error = ErrorIn(step.view(), 0, spec);
    CHECK(error == (is_bool ? "INVALID_ARGUMENT: a Step's " + name +
                                  " (bool): expected bytes 0 and 1, seen others"
                            : ""));
  }
}

TEST_CASE("decoder: a Step of wrong lengths is refused") {
  const TestStep step(0);
  for (int64_t size : {0, 23, 25}) {
    StepView view = step.view();
    const std::string other(size, 0);
    view.observations = other;
    CHECK(ErrorIn(view) == "INVALID_ARGUMENT: a Step's observations: expected 24 bytes, seen " +
                               std::to_string(size));
  }
  for (int64_t size : {0, 1, 3}) {
    ForEachStepField([&](const auto& field) {
      StepView view = step.view();
      (view.*field.span).size = size;
      CHECK(ErrorIn(view) == std::string("INVALID_ARGUMENT: a Step's ") + field.name +
                                 ": expected 2 values, seen " + std::to_string(size));
    });
  }
}

TEST_CASE("decoder: numbers that are not finite are refused") {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    TestStep step(0);
    step.reward[1] = bad;
    CHECK(ErrorIn(step.view()) ==
          "INVALID_ARGUMENT: a Step's reward: expected finite numbers, seen " +
              std::to_string(bad));
    step = TestStep(0);
    step.episode_return[0] = bad;
    CHECK(Has(ErrorIn(step.view()), "a Step's episode_return: expected finite numbers, seen "));
  }
}

TEST_CASE("decoder: bytes of a bool must be 0 or 1, and bytes of other integers may be any") {
  for (int bad : {2, 128, 255}) {
    for (int i = 16; i < 22; ++i) {
      TestStep step(0);
      step.observations[i] = static_cast<char>(bad);
      CHECK(ErrorIn(step.view()) ==
            "INVALID_ARGUMENT: a Step's b (bool): expected bytes 0 and 1, seen others");
    }
  }
  TestStep step(0);
  for (int i : {0, 15, 22, 23}) step.observations[i] = static_cast<char>(255);
  CHECK(ErrorIn(step.view()) == "");
}

TEST_CASE("decoder: a discount is a number from -1 to 1") {
  for (float value : {-1.0f, 0.5f, 1.0f, 1.5f, -2.0f}) {
    const Spec spec{2, {{"discount", kFloat32, {}}}, "discrete", {2}, 1, "Test"};
    TestStep step(0);
    const float values[] = {1.0f, value};
    step.observations.assign(sizeof(values), '\0');
    std::memcpy(step.observations.data(), values, sizeof(values));
    const bool is_wrong = value > 1 || value < -1;
    CHECK(Has(ErrorIn(step.view(), 1, spec), "a Step's discount: expected -1 to 1, seen ") ==
          is_wrong);
  }
}

TEST_CASE("decoder: floats of observations are finite, whatever their width") {
  const auto error_of = [](DType dtype, uint64_t bits) {  // behind 6 bytes, floats may be unaligned
    const Spec spec{2, {{"bytes", kUInt8, {3}}, {"x", dtype, {2}}}, "discrete", {2}, 1, "Test"};
    TestStep step(0);
    step.observations.assign(6 + 4 * dtype.size(), '\0');
    std::memcpy(step.observations.data() + 6 + 3 * dtype.size(), &bits, dtype.size());
    return ErrorIn(step.view(), 1, spec);
  };
  const struct {
    DType dtype;
    uint64_t infinite, nan, largest;
  } cases[] = {{kFloat32, 0xff800000, 0x7fc00001, 0x7f7fffff},
               {{Kind::kFloat, 64}, 0x7ff0000000000000, 0x7ff8000000000000, 0xc7efffffe0000000},
               {{Kind::kFloat, 16}, 0x7c00, 0xfe00, 0x7bff},
               {{Kind::kBFloat, 16}, 0x7f80, 0x7fc0, 0xff7f}};
  for (const auto& [dtype, infinite, nan, largest] : cases) {
    const std::string expected =
        "INVALID_ARGUMENT: a Step's x: expected finite numbers of float32, seen others";
    CHECK(error_of(dtype, infinite) == expected);
    CHECK(error_of(dtype, nan) == expected);
    CHECK(error_of(dtype, largest) == "");
  }
  CHECK(error_of({Kind::kInt, 64}, ~uint64_t{0}) == "");
  CHECK(error_of({Kind::kFloat, 64}, 0x47effffff0000000) != "");  // infinite in float32
}

TEST_CASE("decoder: the first Step must be the first of its episodes") {
  TestStep step(0, /*first=*/true);
  step.done[1] = false;
  CHECK(ErrorIn(step.view(), 0) ==
        "INVALID_ARGUMENT: a Step's done, at a reset: expected true everywhere, seen false");
  CHECK(ErrorIn(step.view()) == "");
}

TEST_CASE("decoder: a Step that is refused changes nothing") {
  Rollout making(TestSpec(), 2, 1);
  making.WriteStep(0, TestStep(10, true).view(), ActionsOf({0, 0}));
  TestStep bad(20, true);
  bad.observations[21] = 3;
  CHECK_THROWS_AS(making.WriteStep(0, bad.view(), ActionsOf({1, 1})), StreamError);
  CHECK(RowOf<int32_t>(making.StepAt(0), "a", 0)[0] == 10);
  CHECK(RowOf<float>(making.StepAt(0), "reward", 0)[0] == 10.5f);
}

std::string ErrorOfOutputs(const Dict& first, const Dict& second) {
  Rollout making(TestSpec(), 2, 1);
  return ErrorOf<std::invalid_argument>([&] {
    making.WriteOutputs(0, first);
    making.WriteOutputs(1, second);
  });
}

TEST_CASE("rollout: outputs are the same in every row") {
  const Dict good = Outputs(0);
  CHECK(ErrorOfOutputs(good, {good[0]}) == "outputs: expected action, logits; seen action");
  Dict bad = {good[0], {"policy", good[1].second}};
  CHECK(ErrorOfOutputs(good, bad) ==
        "outputs: expected logits float32[1, 2, 2]; seen policy float32[1, 2, 2]");
  bad = {good[0], {"logits", Array::Empty(kFloat32, {1, 2, 3})}};
  CHECK(ErrorOfOutputs(good, bad) ==
        "outputs: expected logits float32[1, 2, 2]; seen logits float32[1, 2, 3]");
  bad = {good[0], {"logits", Array::Empty(kInt32, {1, 2, 2})}};
  CHECK(Has(ErrorOfOutputs(good, bad), "seen logits int32[1, 2, 2]"));
}

TEST_CASE("rollout: outputs have one row, a column for each environment, and names of their own") {
  const auto error = [](const char* name, const Shape& shape) {
    return ErrorOfOutputs({{name, Array::Empty(kInt64, shape)}}, {});
  };
  CHECK(error("action", {2, 2}) == "output action: expected [1, 2, ...], seen int64[2, 2]");
  CHECK(error("x", {1, 3}) == "output x: expected [1, 2, ...], seen int64[1, 3]");
  CHECK(error("x", {1}) == "output x: expected [1, 2, ...], seen int64[1]");
  for (const char* name : {"reward", "a", "core_state/0"}) {  // else the rollout has it twice
    CHECK(error(name, {1, 2}) ==
          "output " + std::string(name) + ": expected a name that is not the environment's");
  }
}

}  // namespace
}  // namespace torchbeast
