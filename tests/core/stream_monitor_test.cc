// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#include "stream_monitor.h"

#include <atomic>
#include <limits>

#include "testing.h"

namespace torchbeast {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class CountingStream : public Stream {
 public:
  Spec Open() override { return {}; }
  void Write(const Array&) override {}
  StepView Read() override { return {}; }
  void Cancel() override { ++cancels; }

  std::atomic<int> cancels{0};
};

const std::string kLate =
    "DEADLINE_EXCEEDED: the server took too long for one answer, more than 0.03 s";

TEST_CASE("monitor: a stream that is late is cancelled once, and its error says so") {
  StreamMonitor monitor({"a", "b"}, milliseconds(1));
  CountingStream late, other;
  {
    const StreamMonitor::Registration one(monitor, 0, late), two(monitor, 1, other);
    monitor.SetOpening(0);
    monitor.SetOpening(1);
    monitor.SetConnected(0);
    CHECK(monitor.status()[0].connected);
    CHECK(!monitor.status()[0].opening);
    CHECK(!monitor.status()[1].connected);
    CHECK(monitor.status()[1].opening);
    const auto start = Clock::now();
    {
      const StreamMonitor::Wait wait(monitor, 0, ActorTimes::kTransport, milliseconds(30));
      const StreamMonitor::Wait without_end(monitor, 1, ActorTimes::kInference);
      Await([&] { return late.cancels > 0; });
      CHECK(Clock::now() - start >= milliseconds(30));
      std::this_thread::sleep_for(milliseconds(10));  // gives an error time to show
    }
    CHECK(late.cancels == 1);
    CHECK(other.cancels == 0);
    CHECK(monitor.times().seconds()[ActorTimes::kTransport] >= 0.03);
    CHECK(monitor.times().seconds()[ActorTimes::kInference] >= 0.03);
    CHECK(monitor.times().seconds()[ActorTimes::kActorWaiting] == 0);
    monitor.Report(0, "CANCELLED: cancelled");
  }
  CHECK(monitor.TakeEvents() == std::vector<std::string>{"actor 0, a: " + kLate});
  CHECK(!monitor.status()[0].connected);
  CHECK(!monitor.status()[1].opening);
  CHECK(monitor.status()[0].failures == 1);
  CHECK(monitor.status()[0].last_error == kLate);
  CountingStream next;  // is not late, though the stream before it was
  const StreamMonitor::Registration registration(monitor, 0, next);
  monitor.Report(0, "UNAVAILABLE: gone");
  CHECK(monitor.TakeEvents() == std::vector<std::string>{"actor 0, a: UNAVAILABLE: gone"});
  CHECK(next.cancels == 0);
}

TEST_CASE("monitor: a part of a wait, at most all of it, can count as another activity's") {
  StreamMonitor monitor({"a", "b"}, hours(1));
  const auto wait = [&](size_t i, auto assign) {
    const auto before = monitor.times().seconds();
    const auto start = Clock::now();
    {
      StreamMonitor::Wait wait(monitor, i, ActorTimes::kTransport);
      std::this_thread::sleep_for(milliseconds(2));
      assign(wait);
    }
    const double most = std::chrono::duration<double>(Clock::now() - start).count();
    const auto after = monitor.times().seconds();
    const double transport = after[ActorTimes::kTransport] - before[ActorTimes::kTransport];
    const double other = after[ActorTimes::kEnvironment] - before[ActorTimes::kEnvironment];
    CHECK(transport + other >= 0.002);
    CHECK(transport + other <= most + 1e-9);
    return other;
  };
  const auto assign = [](double seconds) {
    return [seconds](auto& wait) { wait.Assign(ActorTimes::kEnvironment, seconds); };
  };
  CHECK(wait(0, assign(0.001)) == doctest::Approx(0.001));
  CHECK(wait(1, assign(1e30)) >= 0.002);
  const double infinity = std::numeric_limits<double>::infinity();
  for (double none : {0.0, -1.0, -infinity, infinity, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(wait(0, assign(none)) == 0);
  }
  const auto until = [](milliseconds ago) {
    return [ago](auto& wait) { wait.AssignUntil(Clock::now() - ago, ActorTimes::kEnvironment); };
  };
  CHECK(wait(1, until(milliseconds(0))) >= 0.002);
  CHECK(wait(1, until(hours(1))) == 0);
}

TEST_CASE("monitor: a wait that has ended, or is too long for the clock, cancels nothing") {
  StreamMonitor monitor({"a", "b"}, milliseconds(1));
  CountingStream ended, endless;
  const StreamMonitor::Registration one(monitor, 0, ended), two(monitor, 1, endless);
  {
    const StreamMonitor::Wait wait(monitor, 0, ActorTimes::kTransport, milliseconds(300));
  }
  const StreamMonitor::Wait wait(monitor, 1, ActorTimes::kTransport,
                                 milliseconds::max() - milliseconds(1));
  std::this_thread::sleep_for(milliseconds(400));  // gives an error time to show
  CHECK(ended.cancels == 0);
  CHECK(endless.cancels == 0);
}

TEST_CASE("monitor: Close cancels streams, refuses new ones, wakes sleepers, ends reports") {
  StreamMonitor monitor({"a", "b"}, hours(1));
  CountingStream stream;
  const StreamMonitor::Registration registration(monitor, 0, stream);
  CHECK(monitor.Sleep(milliseconds(1)));
  Threads threads;
  for (int i = 0; i < 2; ++i) threads.Start([&] { Require(!monitor.Sleep(hours(1)), "Sleep"); });
  std::this_thread::sleep_for(milliseconds(10));  // most sleep by now, but none must
  monitor.Close();
  monitor.Close();
  threads.Join();
  CHECK(stream.cancels >= 1);
  CountingStream other;
  CHECK_THROWS_AS(StreamMonitor::Registration(monitor, 1, other), Closed);
  CHECK(!monitor.Sleep(hours(1)));
  monitor.Report(0, "CANCELLED: cancelled");
  CHECK(monitor.TakeEvents().empty());
}

TEST_CASE("monitor: events that nobody takes are kept up to a limit, the newest") {
  StreamMonitor monitor({"a"}, hours(1));
  for (int i = 0; i < 1500; ++i) monitor.Report(0, std::to_string(i));
  const auto events = monitor.TakeEvents();
  CHECK(events.size() == 1000);
  CHECK(events.front() == "actor 0, a: 500");
  CHECK(events.back() == "actor 0, a: 1499");
  CHECK(monitor.TakeEvents().empty());
  CHECK(monitor.status()[0].failures == 1500);
}

}  // namespace
}  // namespace torchbeast
