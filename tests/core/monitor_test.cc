// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "monitor.h"

#include <atomic>

#include "testing.h"

namespace torchbeast {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class CountingStream : public Stream {
 public:
  Spec Open() override { return {}; }
  void Write(const std::vector<int32_t>&) override {}
  StepView Read() override { return {}; }
  void Cancel() override { ++cancels; }

  std::atomic<int> cancels{0};
};

TEST_CASE("monitor: a stream that is late is cancelled once, and its error is that") {
  Monitor monitor({"a", "b"}, milliseconds(1));
  CountingStream late, other;
  {
    const Monitor::Registration one(monitor, 0, late), two(monitor, 1, other);
    monitor.SetConnected(0);
    CHECK(monitor.status()[0].connected);
    CHECK(!monitor.status()[1].connected);
    const auto start = Clock::now();
    {
      const Monitor::Wait wait(monitor, 0, Monitor::kEnvironment, milliseconds(30));
      const Monitor::Wait without_end(monitor, 1, Monitor::kInference);
      Await([&] { return late.cancels > 0; });
      CHECK(Clock::now() - start >= milliseconds(30));
      std::this_thread::sleep_for(milliseconds(10));  // for an error to show, not for success
    }
    CHECK(late.cancels == 1);
    CHECK(other.cancels == 0);
    CHECK(monitor.seconds()[Monitor::kEnvironment] >= 0.03);
    CHECK(monitor.seconds()[Monitor::kInference] >= 0.03);
    CHECK(monitor.seconds()[Monitor::kQueue] == 0);
    monitor.Report(0, "CANCELLED: cancelled");
  }
  CHECK(monitor.TakeEvents() ==
        std::vector<std::string>{"a: DEADLINE_EXCEEDED: the server took too long for one answer"});
  CHECK(!monitor.status()[0].connected);
  CHECK(monitor.status()[0].failures == 1);
  CHECK(monitor.status()[0].last_error ==
        "DEADLINE_EXCEEDED: the server took too long for one answer");
  CountingStream next;  // lateness is of one stream
  const Monitor::Registration registration(monitor, 0, next);
  monitor.Report(0, "UNAVAILABLE: gone");
  CHECK(monitor.TakeEvents() == std::vector<std::string>{"a: UNAVAILABLE: gone"});
  CHECK(next.cancels == 0);
}

TEST_CASE("monitor: a wait that ended in time has no deadline any more") {
  Monitor monitor({"a"}, milliseconds(1));
  CountingStream stream;
  const Monitor::Registration registration(monitor, 0, stream);
  {
    const Monitor::Wait wait(monitor, 0, Monitor::kEnvironment, hours(1));
  }
  {
    const Monitor::Wait wait(monitor, 0, Monitor::kQueue);
    std::this_thread::sleep_for(milliseconds(10));  // for an error to show, not for success
  }
  CHECK(stream.cancels == 0);
}

TEST_CASE("monitor: a timeout too long for the clock is as good as none") {
  Monitor monitor({"a"}, milliseconds(1));
  CountingStream stream;
  const Monitor::Registration registration(monitor, 0, stream);
  const Monitor::Wait wait(monitor, 0, Monitor::kEnvironment,
                           milliseconds::max() - milliseconds(1));
  std::this_thread::sleep_for(milliseconds(20));  // for an error to show, not for success
  CHECK(stream.cancels == 0);
}

TEST_CASE("monitor: Close cancels streams, refuses new ones, wakes sleepers, ends reports") {
  Monitor monitor({"a", "b"}, hours(1));
  CountingStream stream;
  const Monitor::Registration registration(monitor, 0, stream);
  CHECK(monitor.Sleep(milliseconds(1)));
  Threads threads;
  for (int i = 0; i < 2; ++i) threads.Start([&] { Require(!monitor.Sleep(hours(1)), "Sleep"); });
  std::this_thread::sleep_for(milliseconds(10));  // most sleep by now; none has to
  monitor.Close();
  monitor.Close();
  threads.Join();
  CHECK(stream.cancels >= 1);
  CountingStream other;
  CHECK_THROWS_AS(Monitor::Registration(monitor, 1, other), Closed);
  CHECK(!monitor.Sleep(hours(1)));
  monitor.Report(0, "CANCELLED: cancelled");
  CHECK(monitor.TakeEvents().empty());
}

TEST_CASE("monitor: any thread may ask at any time") {  // for ThreadSanitizer
  Monitor monitor({"a"}, milliseconds(1));
  Threads threads;
  threads.Start([&] {
    for (int i = 0; i < 300; ++i) {
      CountingStream stream;
      const Monitor::Registration registration(monitor, 0, stream);
      const Monitor::Wait wait(monitor, 0, Monitor::kEnvironment, hours(1));
      monitor.SetConnected(0);
      monitor.Report(0, std::to_string(i));
    }
  });
  threads.Start([&] {
    for (int i = 0; i < 300; ++i) Require(monitor.status().size() == 1, "status");
  });
  threads.Start([&] {
    for (int i = 0; i < 300; ++i) Require(monitor.seconds()[Monitor::kQueue] == 0, "seconds");
  });
  size_t events = 0;
  Await([&] { return (events += monitor.TakeEvents().size()) == 300; });
  threads.Join();
}

TEST_CASE("monitor: events that nobody takes are kept up to a limit, the newest") {
  Monitor monitor({"a"}, hours(1));
  for (int i = 0; i < 1500; ++i) monitor.Report(0, std::to_string(i));
  const auto events = monitor.TakeEvents();
  CHECK(events.size() == 1000);
  CHECK(events.front() == "a: 500");
  CHECK(events.back() == "a: 1499");
  CHECK(monitor.TakeEvents().empty());
  CHECK(monitor.status()[0].failures == 1500);
}

}  // namespace
}  // namespace torchbeast
