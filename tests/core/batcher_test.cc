// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>

#include "dynamic_batcher.h"
#include "testing.h"

namespace torchbeast {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Returns n columns named first, first + 1, ..., with a state of two layers.
NetIO Question(int64_t first, int64_t n) {
  std::vector<int64_t> names, state;
  for (int64_t i = 0; i < n; ++i) names.push_back(first + i);
  for (int64_t i = 0; i < 2 * n; ++i) state.push_back(10 * (first + i % n) + i / n);
  return {{{"name", Make<int64_t>({1, n}, names)}}, {Make<int64_t>({2, n, 1}, state)}};
}

// Returns twice the names, and the state plus one. Checks that name and state are of the same
// column.
NetIO Reply(const NetIO& inputs) {
  const Array& names = inputs.arrays.at(0).second;
  const int64_t n = names.columns();
  NetIO reply{{{"double", Array::Empty(kInt64, {1, n})}}, {Array::Empty(kInt64, {2, n, 1})}};
  for (int64_t i = 0; i < n; ++i) {
    reply.arrays[0].second.as<int64_t>()[i] = 2 * names.as<int64_t>()[i];
    for (int64_t layer = 0; layer < 2; ++layer) {
      const int64_t state = inputs.core_state.at(0).as<int64_t>()[layer * n + i];
      Require(state == 10 * names.as<int64_t>()[i] + layer, "a state of another column");
      reply.core_state[0].as<int64_t>()[layer * n + i] = state + 1;
    }
  }
  return reply;
}

void CheckReply(const NetIO& reply, int64_t first, int64_t n) {
  Require(reply.arrays.size() == 1 && reply.arrays[0].first == "double", "the arrays");
  Require(reply.arrays[0].second.shape() == Shape{1, n}, reply.arrays[0].second.describe());
  Require(reply.core_state.at(0).shape() == Shape{2, n, 1}, reply.core_state[0].describe());
  for (int64_t i = 0; i < n; ++i) {
    Require(reply.arrays[0].second.as<int64_t>()[i] == 2 * (first + i), "another column's answer");
    for (int64_t layer = 0; layer < 2; ++layer) {
      Require(reply.core_state[0].as<int64_t>()[layer * n + i] == 10 * (first + i) + layer + 1,
              "another column's state");
    }
  }
}

std::vector<int64_t> NamesIn(const Batch& batch) {
  return Values<int64_t>(batch.GetInputs().arrays[0].second);
}

TEST_CASE("batcher: sizes are checked") {
  const auto error = [](int64_t minimum, int64_t maximum, int64_t us) {
    return ErrorOf<std::invalid_argument>(
        [&] { DynamicBatcher(minimum, maximum, microseconds(us)); });
  };
  CHECK(error(0, 4, 1) ==
        "batch sizes: expected 1 <= minimum <= maximum, seen minimum 0 and maximum 4");
  CHECK(error(5, 4, 1) ==
        "batch sizes: expected 1 <= minimum <= maximum, seen minimum 5 and maximum 4");
  CHECK(error(1, 1, -1) == "timeout: expected at least 0, seen -1 us");
}

TEST_CASE("batcher: requests are checked, and against the first") {
  DynamicBatcher batcher(1, 3, hours(1));
  CHECK(ErrorOf<std::invalid_argument>([&] { batcher.Compute(Question(0, 4)); }) ==
        "a request of 4 columns: expected at most the maximum of 3");
  CHECK(ErrorOf<std::invalid_argument>([&] { batcher.Compute({}); }) ==
        "expected at least one array, seen none");
  NetIO question = Question(0, 2);
  question.core_state[0] = Array::Empty(kInt64, {2, 3, 1});
  CHECK(ErrorOf<std::invalid_argument>([&] { batcher.Compute(question); }) ==
        "core_state: expected 2 columns, seen int64[2, 3, 1]");
  Threads threads;
  threads.Start([&] { CheckReply(batcher.Compute(Question(0, 2)), 0, 2); });
  const auto batch = batcher.Next();
  question = Question(0, 1);
  question.core_state.clear();
  CHECK(ErrorOf<std::invalid_argument>([&] { batcher.Compute(question); }) ==
        "expected the arrays name, core_state; seen name");
  question = Question(0, 1);
  question.arrays[0].second = Array::Empty(kInt32, {1, 1});
  CHECK(ErrorOf<std::invalid_argument>([&] { batcher.Compute(question); }) ==
        "name: expected int64[1, 2] with any number of columns, seen int32[1, 1]");
  CHECK(batcher.size() == 0);
  batch->SetOutputs(Reply(batch->GetInputs()));
  threads.Join();
}

TEST_CASE("batcher: outputs are checked, and may be given again if they were refused") {
  DynamicBatcher batcher(3, 3, hours(1));
  Threads threads;
  threads.Start([&] { CheckReply(batcher.Compute(Question(0, 3)), 0, 3); });
  const auto batch = batcher.Next();
  const NetIO good = Reply(batch->GetInputs());
  NetIO bad = good;
  bad.arrays[0].second = Array::Empty(kInt64, {1, 2});
  CHECK(ErrorOf<std::invalid_argument>([&] { batch->SetOutputs(bad); }) ==
        "outputs, double: expected 3 columns, seen int64[1, 2]");
  bad = good;
  bad.core_state[0] = Array::Empty(kInt64, {2, 4, 1});
  CHECK(ErrorOf<std::invalid_argument>([&] { batch->SetOutputs(bad); }) ==
        "outputs, core_state: expected 3 columns, seen int64[2, 4, 1]");
  bad = good;
  bad.arrays.emplace_back("loss", Array::Empty(kFloat32, {}));
  CHECK(ErrorOf<std::invalid_argument>([&] { batch->SetOutputs(bad); }) ==
        "expected an array [T, B, ...], seen float32[]");
  batch->SetOutputs(good);
  CHECK(ErrorOf<std::invalid_argument>([&] { batch->SetOutputs(good); }) ==
        "the batch has its outputs already");
  threads.Join();
}

TEST_CASE("batcher: a single request's own arrays come out, not copies") {
  DynamicBatcher batcher(1, 4, hours(1));
  const NetIO question = Question(0, 2);
  Threads threads;
  threads.Start([&] { CheckReply(batcher.Compute(question), 0, 2); });
  const auto batch = batcher.Next();
  CHECK(batch->columns() == 2);
  CHECK(batch->GetInputs().arrays[0].second.data() == question.arrays[0].second.data());
  CHECK(batch->GetInputs().core_state[0].data() == question.core_state[0].data());
  batch->SetOutputs(Reply(batch->GetInputs()));
  threads.Join();
}

TEST_CASE("batcher: inputs are joined in lent memory, also those of a single request") {
  DynamicBatcher batcher(2, 4, hours(1));
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2}, std::vector<int64_t>{1, 3}}) {
    Threads threads;
    for (int64_t size : sizes) {
      threads.Start([&, size] { CheckReply(batcher.Compute(Question(7, size)), 7, size); });
    }
    const int64_t columns = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    Await([&] { return batcher.size() == columns; });
    const auto batch = batcher.Next();
    const NetIO wrong = Question(0, batch->columns() + 1);
    CHECK(ErrorOf<std::invalid_argument>([&] { batch->GetInputs(&wrong); }) ==
          "name: expected " + std::to_string(batch->columns()) + " columns, seen int64[1, " +
              std::to_string(batch->columns() + 1) + "]");
    const NetIO into = Question(0, batch->columns()), expected = batch->GetInputs();
    CHECK(batch->GetInputs(&into).arrays[0].second.data() == into.arrays[0].second.data());
    CHECK(Values<int64_t>(into.arrays[0].second) == Values<int64_t>(expected.arrays[0].second));
    CHECK(Values<int64_t>(into.core_state[0]) == Values<int64_t>(expected.core_state[0]));
    batch->SetOutputs(Reply(into));
    threads.Join();
  }
}

TEST_CASE("batcher: a caller is told when its request was taken") {
  DynamicBatcher batcher(1, 4, hours(1));
  Clock::time_point taken[2];
  Threads threads;
  for (int i : {0, 1}) {
    threads.Start([&, i] { CheckReply(batcher.Compute(Question(i, 1), &taken[i]), i, 1); });
  }
  Await([&] { return batcher.size() == 2; });
  const Clock::time_point before = Clock::now();
  const auto batch = batcher.Next();
  const Clock::time_point after = Clock::now();
  batch->SetOutputs(Reply(batch->GetInputs()));
  threads.Join();
  CHECK(before <= taken[0]);
  CHECK(taken[0] <= after);
  CHECK(taken[1] == taken[0]);
}

TEST_CASE("batcher: a batch waits for the minimum, also if its timeout is too long for the clock") {
  DynamicBatcher batcher(3, 8, microseconds::max());
  Threads threads;
  std::atomic<bool> taken{false};
  threads.Start([&] {
    const auto batch = batcher.Next();
    taken = true;
    Require(NamesIn(*batch) == std::vector<int64_t>{0, 1, 2}, "not all three, in order");
    batch->SetOutputs(Reply(batch->GetInputs()));
  });
  threads.Start([&] { CheckReply(batcher.Compute(Question(0, 2)), 0, 2); });
  Await([&] { return batcher.size() == 2; });
  std::this_thread::sleep_for(milliseconds(20));  // gives an error time to show
  CHECK(!taken);
  threads.Start([&] { CheckReply(batcher.Compute(Question(2, 1)), 2, 1); });
  threads.Join();
}

TEST_CASE("batcher: a batch has the oldest requests that fit the maximum, never split") {
  DynamicBatcher batcher(1, 5, hours(1));
  Threads threads;
  int64_t first = 0;
  for (int64_t n : {2, 2, 2, 5, 1, 1}) {  // 2 2 | 2 | 5 | 1 1
    threads.Start([&, first, n] { CheckReply(batcher.Compute(Question(first, n)), first, n); });
    first += n;
    Await([&] { return batcher.size() == first; });
  }
  int64_t from = 0;
  for (int64_t n : {4, 2, 5, 2}) {
    const auto batch = batcher.Next();
    CHECK(batch->columns() == n);
    CHECK(NamesIn(*batch)[0] == from);
    CHECK(NamesIn(*batch)[n - 1] == from + n - 1);
    batch->SetOutputs(Reply(batch->GetInputs()));
    from += n;
  }
  CHECK(batcher.size() == 0);
  threads.Join();
}

TEST_CASE(
    "batcher: a batch below the minimum is ready once the oldest has waited for the timeout") {
  constexpr milliseconds kTimeout{100};
  DynamicBatcher batcher(100'000, 100'000, kTimeout);
  Threads threads;
  std::atomic<bool> taken{false};
  const auto start = Clock::now();
  threads.Start([&] {
    const auto batch = batcher.Next();
    taken = true;
    Require(Clock::now() - start >= kTimeout, "before the timeout");
    Require(NamesIn(*batch)[0] == 0, "not the oldest");
    batch->SetOutputs(Reply(batch->GetInputs()));
  });
  Threads callers;
  int64_t sent = 0;
  for (; !taken && sent < 100; ++sent) {  // 10 times the timeout
    callers.Start([&batcher, sent] {
      try {
        CheckReply(batcher.Compute(Question(sent, 1)), sent, 1);
      } catch (const Closed&) {  // its request came after the batch
      }
    });
    if (sent == 0) Await([&] { return taken || batcher.size() == 1; });  // it is the oldest
    std::this_thread::sleep_for(milliseconds(10));
  }
  CHECK(taken);
  batcher.Close();
  callers.Join();
  threads.Join();
}

TEST_CASE("batcher: among threads each caller gets the answers to its own columns") {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int64_t maximum = 1 + random() % 8, minimum = 1 + random() % maximum;
    const int callers = 1 + random() % 5, answerers = 1 + random() % 3;
    DynamicBatcher batcher(minimum, maximum, microseconds(random() % 2000));
    Threads calling, answering;
    constexpr int64_t kCaller = 1'000'000;
    std::mutex mutex;
    std::map<int64_t, int> answers;
    for (int a = 0; a < answerers; ++a) {
      answering.Start([&] {
        ErrorOf<Closed>([&] {
          while (true) {
            const auto batch = batcher.Next();
            Require(1 <= batch->columns() && batch->columns() <= maximum, "the maximum");
            const NetIO inputs = batch->GetInputs();
            const Array& names = inputs.arrays[0].second;
            Require(names.columns() == batch->columns(), "columns()");
            {
              std::lock_guard<std::mutex> lock(mutex);
              for (int64_t i = 0; i < names.columns(); ++i) ++answers[names.as<int64_t>()[i]];
            }
            batch->SetOutputs(Reply(inputs));
          }
        });
      });
    }
    for (int c = 0; c < callers; ++c) {
      calling.Start([&, c, generator = std::mt19937(random())]() mutable {
        for (int64_t i = 0; i < 60;) {
          const int64_t n = 1 + generator() % maximum;
          CheckReply(batcher.Compute(Question(c * kCaller + i, n)), c * kCaller + i, n);
          i += n;
        }
      });
    }
    calling.Join();
    batcher.Close();
    answering.Join();
    CHECK(std::all_of(answers.begin(), answers.end(), [](const auto& a) { return a.second == 1; }));
  }
}

TEST_CASE("batcher: when it is closed at any moment, all threads end") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int64_t maximum = 1 + random() % 6, minimum = 1 + random() % maximum;
    DynamicBatcher batcher(minimum, maximum, microseconds(random() % 1000));
    std::atomic<int64_t> answered{0};
    Threads threads;
    for (uint32_t c = 0; c < 4; ++c) {
      threads.Start([&, generator = std::mt19937(random())]() mutable {
        ErrorOf<Closed>([&] {
          for (int64_t i = 0;; ++i) {
            const int64_t n = 1 + generator() % maximum;
            try {
              CheckReply(batcher.Compute(Question(i, n)), i, n);
              ++answered;
            } catch (const Unanswered&) {
            }
          }
        });
      });
    }
    for (uint32_t a = 0; a < 2; ++a) {
      threads.Start([&, generator = std::mt19937(random())]() mutable {
        ErrorOf<Closed>([&] {
          while (true) {
            const auto batch = batcher.Next();
            if (generator() % 4 != 0) batch->SetOutputs(Reply(batch->GetInputs()));  // or drops it
          }
        });
      });
    }
    const int64_t enough = random() % 60;
    Await([&] { return answered >= enough; });
    Threads closing;
    for (int i = 0; i < 2; ++i) closing.Start([&batcher] { batcher.Close(); });
    closing.Join();
    threads.Join();
    CHECK(batcher.size() == 0);
  }
}

TEST_CASE("batcher: the callers of a dropped batch get Unanswered, others go on") {
  DynamicBatcher batcher(2, 2, hours(1));
  Threads threads;
  for (int64_t i : {0, 1}) {
    threads.Start([&batcher, i] {
      const std::string error = ErrorOf<Unanswered>([&] { batcher.Compute(Question(i, 1)); });
      Require(error == "the batch was dropped without an answer", error);
    });
  }
  batcher.Next().reset();
  threads.Join();
  threads.Start([&] { CheckReply(batcher.Compute(Question(0, 2)), 0, 2); });
  const auto batch = batcher.Next();
  batch->SetOutputs(Reply(batch->GetInputs()));
  threads.Join();
}

TEST_CASE("batcher: Close fails calls that wait, calls whose batch is handed out, and later ones") {
  DynamicBatcher batcher(1, 2, hours(1));
  Threads threads;
  const auto expect_closed = [&batcher](int64_t first) {
    const std::string error = ErrorOf<Closed>([&] { batcher.Compute(Question(first, 2)); });
    Require(error == "the batcher is closed", error);
  };
  threads.Start([&] { expect_closed(0); });
  const auto handed_out = batcher.Next();
  threads.Start([&] { expect_closed(2); });
  Await([&] { return batcher.size() == 2; });
  DynamicBatcher empty(1, 1, hours(1));
  for (int i = 0; i < 3; ++i) {
    threads.Start([&] { ErrorOf<Closed>([&] { empty.Next(); }); });
  }
  std::this_thread::sleep_for(milliseconds(20));  // most wait by now, but none must
  for (DynamicBatcher* closing : {&batcher, &empty}) {
    closing->Close();
    closing->Close();
  }
  threads.Join();
  expect_closed(4);
  CHECK_THROWS_AS(batcher.Next(), Closed);
  handed_out->SetOutputs(Reply(handed_out->GetInputs()));  // has no effect
  CHECK(batcher.size() == 0);
}

TEST_CASE("batcher: a batch may outlive its batcher") {
  auto batcher = std::make_unique<DynamicBatcher>(1, 1, hours(1));
  Threads threads;
  threads.Start([&] { ErrorOf<Closed>([&] { batcher->Compute(Question(0, 1)); }); });
  const auto batch = batcher->Next();
  batcher->Close();
  threads.Join();
  batcher.reset();
  CHECK(NamesIn(*batch) == std::vector<int64_t>{0});
  batch->SetOutputs(Reply(batch->GetInputs()));
}

TEST_CASE("batcher: requests that a batch leaves wake another thread that waits") {
  DynamicBatcher batcher(2, 2, hours(1));
  Threads threads;
  for (int i = 0; i < 3; ++i) {
    threads.Start([&] {
      const auto batch = batcher.Next();
      batch->SetOutputs(Reply(batch->GetInputs()));
    });
  }
  std::this_thread::sleep_for(milliseconds(20));  // most wait by now, but none must
  for (int64_t i = 0; i < 3; ++i) {
    threads.Start([&batcher, i] { CheckReply(batcher.Compute(Question(2 * i, 2)), 2 * i, 2); });
  }
  threads.Join();
}

}  // namespace
}  // namespace torchbeast
