// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// Measures how fast gRPC C++ alone is, with a server and a client that ignore the data. This is the
// upper bound of PolyBeast's transport.
//
//   bare_stream serve ADDRESS BYTES N
//     Runs an rpcenv.RPCEnvServer until it is killed. When a Stream opens it sends a Step, and then
//     one for each Action. The Step is always the same and has N * BYTES bytes of observations.
//   bare_stream drive SECONDS STREAMS_PER_SERVER N ADDRESS...
//     Opens the streams, each with a thread that writes an Action and reads a Step in turn. Prints
//     the steps per second of all streams together. Each message counts as N steps.
//
// Both use gRPC's defaults, except that messages may have any size.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rpcenv.grpc.pb.h"

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kWarmUp = 50;       // the first messages of each stream, which are not counted
constexpr Seconds kPatience{30};  // the longest time for the warm-up, and for the streams' end

rpcenv::Step MakeStep(int64_t bytes, int num_envs) {
  rpcenv::Step step;
  step.set_observations(std::string(num_envs * bytes, 'x'));
  for (int i = 0; i < num_envs; ++i) {
    step.add_reward(1);
    step.add_done(false);
    step.add_terminated(false);
    step.add_truncated(false);
    step.add_episode_over(false);
    step.add_episode_step(1);
    step.add_episode_return(1);
  }
  return step;
}

class Server final : public rpcenv::RPCEnvServer::Service {
 public:
  Server(int64_t bytes, int num_envs) : step_(MakeStep(bytes, num_envs)) {}

  grpc::Status Stream(grpc::ServerContext*,
                      grpc::ServerReaderWriter<rpcenv::Step, rpcenv::Action>* stream) override {
    rpcenv::Action action;
    while (stream->Write(step_) && stream->Read(&action)) {
      if (action.actions_size() != step_.reward_size()) {
        return grpc::Status(grpc::INVALID_ARGUMENT,
                            "expected " + std::to_string(step_.reward_size()) + " actions, seen " +
                                std::to_string(action.actions_size()));
      }
    }
    return grpc::Status::OK;
  }

 private:
  const rpcenv::Step step_;
};

// Counts the messages of all streams. The first failure of a stream ends all streams.
class Tally {
 public:
  explicit Tally(int streams) : counts_(streams, 0), cold_(streams) {}

  // Counts a message of `stream`. Returns whether the stream should go on.
  bool Add(int stream) {
    std::unique_lock lock(mutex_);
    if (++counts_[stream] == kWarmUp && --cold_ == 0) changed_.notify_all();
    return !stopped_;
  }
  // Ends the measurement with an error. Does nothing after the measurement.
  void Fail(const std::string& why) {
    std::unique_lock lock(mutex_);
    if (!stopped_) failure_ = why;
    stopped_ = true;
    changed_.notify_all();
  }
  // Waits until all streams are warm, measures for `seconds`, and stops the streams. Returns the
  // messages per second.
  double Measure(Seconds seconds) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return stopped_ || cold_ == 0; })) {
      failure_ = std::to_string(cold_) + " streams did not finish their warm-up in time";
      stopped_ = true;
    }
    const Clock::time_point start = Clock::now();
    const int64_t before = SumLocked();
    changed_.wait_for(lock, seconds, [&] { return stopped_; });
    stopped_ = true;
    return (SumLocked() - before) / Seconds(Clock::now() - start).count();
  }
  void ThrowFailure() {
    std::unique_lock lock(mutex_);
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

 private:
  int64_t SumLocked() const {
    int64_t sum = 0;
    for (int64_t count : counts_) sum += count;
    return sum;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> counts_;  // mutex_ protects this and all members below
  int cold_;                     // the number of streams that are not warm yet
  bool stopped_ = false;
  std::string failure_;  // empty if no stream has failed
};

void DriveOne(const std::string& address, int index, int num_envs, Seconds limit, Tally* tally) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto stub = rpcenv::RPCEnvServer::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::seconds>(limit));
  const auto stream = stub->Stream(&context);
  rpcenv::Action action;
  for (int i = 0; i < num_envs; ++i) action.add_actions(0);
  rpcenv::Step step;
  bool open = stream->Read(&step);
  while (open && step.reward_size() == num_envs && tally->Add(index)) {
    open = stream->Write(action) && stream->Read(&step);
  }
  if (open) context.TryCancel();
  const grpc::Status status = stream->Finish();
  std::string why = status.ok() ? "the server ended the stream" : status.error_message();
  if (open) {  // either a wrong Step, or the measurement is over and Fail does nothing
    why = "expected " + std::to_string(num_envs) + " environments, seen " +
          std::to_string(step.reward_size());
  }
  tally->Fail(address + ": " + why);
}

double Drive(Seconds seconds, int streams_per_server, int num_envs,
             const std::vector<std::string>& addresses) {
  const int streams = streams_per_server * static_cast<int>(addresses.size());
  Tally tally(streams);
  std::vector<std::thread> threads;
  for (int i = 0; i < streams; ++i) {
    threads.emplace_back(DriveOne, addresses[i / streams_per_server], i, num_envs,
                         seconds + 2 * kPatience, &tally);
  }
  const double messages = tally.Measure(seconds);
  for (std::thread& thread : threads) thread.join();
  tally.ThrowFailure();
  return messages * num_envs;
}

void Serve(const std::string& address, int64_t bytes, int num_envs) {
  Server service(bytes, num_envs);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) throw std::runtime_error("cannot listen at " + address);
  server->Wait();
}

int Main(const std::vector<std::string>& words) {
  if (words.size() == 4 && words[0] == "serve") {
    Serve(words[1], std::stoll(words[2]), std::stoi(words[3]));
  } else if (words.size() >= 5 && words[0] == "drive") {
    std::printf("%.0f\n", Drive(Seconds(std::stod(words[1])), std::stoi(words[2]),
                                std::stoi(words[3]), {words.begin() + 4, words.end()}));
  } else {
    std::cerr << "usage: bare_stream serve ADDRESS BYTES N\n"
                 "       bare_stream drive SECONDS STREAMS_PER_SERVER N ADDRESS...\n";
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "bare_stream: " << error.what() << "\n";
    return 1;
  }
}
