// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "array.h"

#include <array>
#include <memory>

#include "spec.h"
#include "testing.h"

namespace torchbeast {
namespace {

TEST_CASE("array: names of dtypes, and descriptions") {
  CHECK(DType{Kind::kComplex, 64}.name() == "complex64");
  CHECK(DType{static_cast<Kind>(99), 8}.name() == "dtype 99");
  CHECK(Describe(kUInt8, {1, 8, 84, 84}) == "uint8[1, 8, 84, 84]");
  CHECK(Describe(kFloat32, {}) == "float32[]");
}

TEST_CASE("array: sizes, rows and columns") {
  const Array array = Make<int32_t>({2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(array.bytes() == 48);
  CHECK(array.columns() == 3);
  CHECK(array.column_bytes() == 8);
  const Array row = array.Row(1);
  CHECK(row.shape() == Shape{1, 3, 2});
  CHECK(Values<int32_t>(row) == std::vector<int32_t>{6, 7, 8, 9, 10, 11});
  CHECK(row.data() == array.data() + 24);
  CHECK(ErrorOf<std::invalid_argument>([] { Make<int32_t>({2}, {1, 2}).columns(); }) ==
        "expected an array [T, B, ...], seen int32[2]");
  CHECK(Array::Empty(kFloat32, {3, 0, 2}).bytes() == 0);
  CHECK(Array::Empty(kFloat32, {}).bytes() == 4);
}

TEST_CASE("array: memory lives as long as one of the arrays that share it") {
  const auto owner = std::make_shared<std::array<float, 6>>();
  const std::weak_ptr<void> alive = owner;
  Array part;
  {
    const Array array(kFloat32, {1, 6}, owner, owner->data());
    part = SliceColumns(array, 2, 3);
  }
  CHECK(part.as<float>() == owner->data() + 2);
  CHECK(owner.use_count() == 2);
  part = Array();
  CHECK(owner.use_count() == 1);
}

TEST_CASE("array: columns are sliced without a copy where they are contiguous") {
  const Array rows = Make<int16_t>({2, 3}, {0, 1, 2, 3, 4, 5});
  CHECK(SliceColumns(rows, 0, 3).data() == rows.data());
  CHECK(Values<int16_t>(SliceColumns(rows, 1, 2)) == std::vector<int16_t>{1, 2, 4, 5});
  CHECK(Values<int16_t>(SliceColumns(rows, 2, 1)) == std::vector<int16_t>{2, 5});
  const Array row = Make<int16_t>({1, 3, 2}, {0, 1, 2, 3, 4, 5});
  const Array slice = SliceColumns(row, 1, 2);
  CHECK(slice.data() == row.data() + 4);
  CHECK(slice.shape() == Shape{1, 2, 2});
}

TEST_CASE("array: columns are copied between arrays of different width") {
  const Array source = Make<int16_t>({2, 3}, {0, 1, 2, 3, 4, 5});
  const Array target = Make<int16_t>({2, 4}, {9, 9, 9, 9, 9, 9, 9, 9});
  CopyColumns(source, 1, 2, target, 2);
  CHECK(Values<int16_t>(target) == std::vector<int16_t>{9, 9, 1, 2, 9, 9, 4, 5});
  CopyColumns(source, 0, 0, target, 0);
  const Array empty = Array::Empty(kFloat32, {2, 3, 0});
  CopyColumns(empty, 0, 3, Array::Empty(kFloat32, {2, 4, 0}), 1);
  CHECK(Values<int16_t>(target)[0] == 9);
}

TEST_CASE("array: errors about dicts say what was expected and seen") {
  const Dict two = {{"a", Array::Empty(kInt32, {3, 2})}, {"b", Array::Empty(kBool, {1, 2, 5})}};
  CHECK(CommonColumns(two) == 2);
  CHECK(Find(two, "b") == &two[1].second);
  CHECK(Find(two, "c") == nullptr);
  CHECK(ErrorOf<std::invalid_argument>([] { CommonColumns({}); }) ==
        "expected at least one array, seen none");
  CHECK(ErrorOf<std::invalid_argument>([] {
          CommonColumns({{"a", Array::Empty(kInt32, {1, 0})}});
        }) == "expected at least one column, seen none");
  CHECK(ErrorOf<std::invalid_argument>([&] {
          CommonColumns({two[0], {"b", Array::Empty(kBool, {1, 3})}});
        }) == "b: expected 2 columns, seen bool[1, 3]");

  CheckSameButColumns(two,
                      {{"a", Array::Empty(kInt32, {3, 7})}, {"b", Array::Empty(kBool, {1, 7, 5})}});
  const auto error = [&](const Dict& seen) {
    return ErrorOf<std::invalid_argument>([&] { CheckSameButColumns(two, seen); });
  };
  CHECK(error({two[0]}) == "expected the arrays a, b; seen a");
  CHECK(error({two[1], two[0]}) == "expected the arrays a, b; seen b, a");
  CHECK(error({two[0], {"b", Array::Empty(kUInt8, {1, 2, 5})}}) ==
        "b: expected bool[1, 2, 5] with any number of columns, seen uint8[1, 2, 5]");
  CHECK(error({{"a", Array::Empty(kInt32, {4, 2})}, two[1]}) ==
        "a: expected int32[3, 2] with any number of columns, seen int32[4, 2]");
  CHECK(error({{"a", Array::Empty(kInt32, {3, 2, 1})}, two[1]}) ==
        "a: expected int32[3, 2] with any number of columns, seen int32[3, 2, 1]");
}

TEST_CASE("spec: two fit if they differ only in the number of environments") {
  const Spec spec{2, {{"frame", kUInt8, {3, 4}}, {"x", kFloat32, {}}}, "discrete", {6}, 4, "Pong"};
  CHECK(spec.observation_bytes() == 16);
  CHECK(spec.describe() ==
        "Pong: frame uint8[3, 4], x float32[], discrete actions 6, 4 frames per step");
  Spec other = spec;
  other.num_envs = 9;
  CHECK(other.Fits(spec));
  other.name = "Breakout";
  CHECK(!other.Fits(spec));
  const auto fits = [&](auto change) {
    Spec changed = spec;
    change(changed);
    return changed.Fits(spec);
  };
  CHECK(!fits([](Spec& s) { s.observations[0].name = "image"; }));
  CHECK(!fits([](Spec& s) { s.observations[0].dtype = kBool; }));
  CHECK(!fits([](Spec& s) { s.observations[0].shape = {4, 3}; }));
  CHECK(!fits([](Spec& s) { s.observations[0].stack = 3; }));
  CHECK(!fits([](Spec& s) { s.observations.pop_back(); }));
  CHECK(!fits([](Spec& s) { s.action_kind = "box"; }));
  CHECK(!fits([](Spec& s) { s.action_sizes = {7}; }));
  CHECK(!fits([](Spec& s) { s.frames_per_step = 1; }));
}

}  // namespace
}  // namespace torchbeast
