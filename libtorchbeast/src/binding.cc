// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// The extension module libtorchbeast._C (see _C.pyi). Only this file depends on Python.
//
// The GIL: code that waits or locks runs without it, and code that uses Python objects holds it. So
// no thread that holds the GIL waits long for a C++ mutex. (~Batch takes a Request's mutex while it
// holds the GIL, but only for a moment, and nobody takes the GIL under that mutex.) A thread that
// holds another C++ mutex may take the GIL, to free memory that came from Python.
//
// Arrays come from any object with __dlpack__ and go out as torch tensors, both without a copy.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "actor_pool.h"
#include "dlpack.h"
#include "grpc_transport.h"

namespace py = pybind11;

namespace torchbeast {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

Array ArrayFrom(const std::string& name, py::handle object) {
  if (!py::hasattr(object, "__dlpack__")) {
    throw py::type_error(name + ": expected a tensor or an array, seen " +
                         py::repr(py::type::of(object)).cast<std::string>());
  }
  const auto device = object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
  if (!IsHostMemory(device.first)) {
    throw py::value_error(name + ": expected an array in CPU memory, seen " +
                          py::str(object.attr("device")).cast<std::string>() + "; use .cpu()");
  }
  const py::capsule capsule = object.attr("__dlpack__")();
  auto* managed = capsule.get_pointer<DLManagedTensor>();
  if (PyCapsule_SetName(capsule.ptr(), "used_dltensor") != 0) throw py::error_already_set();
  std::shared_ptr<void> owner(managed, [](DLManagedTensor* tensor) {
    if (tensor->deleter == nullptr || !Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    tensor->deleter(tensor);
  });
  try {
    return FromDLPack(managed->dl_tensor, std::move(owner));
  } catch (const std::invalid_argument& error) {
    throw py::value_error(name + ": " + error.what());
  }
}

// A tensor that the caller lends, for the core to write to. ArrayFrom would copy one that is not
// contiguous.
Array LentFrom(const std::string& name, py::handle tensor) {
  if (!tensor.attr("is_contiguous")().cast<bool>()) {
    throw py::value_error(name + ": expected a contiguous tensor to write to, seen another");
  }
  return ArrayFrom(name, tensor);
}

py::object TensorFrom(const Array& array) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> storage;
  const py::object& from_dlpack =
      storage
          .call_once_and_store_result([] {
            return py::module_::import("torch.utils.dlpack").attr("from_dlpack").cast<py::object>();
          })
          .get_stored();
  const py::capsule capsule(ToDLPack(array), "dltensor", [](PyObject* object) {
    if (!PyCapsule_IsValid(object, "dltensor")) return;  // torch took it
    auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(object, "dltensor"));
    tensor->deleter(tensor);
  });
  return from_dlpack(capsule);
}

using From = Array (*)(const std::string& name, py::handle object);

Dict DictFrom(const py::dict& dict, From from = ArrayFrom) {
  Dict arrays;
  for (const auto& [key, value] : dict) {
    const std::string name = py::str(key);
    arrays.emplace_back(name, from(name, value));
  }
  return arrays;
}

py::dict DictTo(const Dict& arrays) {
  py::dict dict;
  for (const auto& [name, array] : arrays) dict[py::str(name)] = TensorFrom(array);
  return dict;
}

Arrays StateFrom(const py::iterable& state, From from = ArrayFrom) {
  Arrays arrays;
  for (const py::handle& tensor : state) arrays.push_back(from("core_state", tensor));
  return arrays;
}

py::tuple StateTo(const Arrays& state) {
  py::tuple tuple(state.size());
  for (size_t i = 0; i < state.size(); ++i) tuple[i] = TensorFrom(state[i]);
  return tuple;
}

// libtorchbeast.rpcenv.tls.Tls: this side's certificate and key, and the CA certificates to trust.
using PemTexts = std::optional<std::tuple<std::string, std::string, std::string>>;

std::optional<Tls> TlsFrom(const PemTexts& texts) {
  if (!texts) return std::nullopt;
  const auto& [cert, key, ca] = *texts;
  return Tls{cert, key, ca};
}

py::tuple PairTo(const NetIO& io) {
  return py::make_tuple(DictTo(io.arrays), StateTo(io.core_state));
}

// Returns the next item of a loop `for batch in ...`, which ends when `take` throws Closed.
template <class F>
auto Next(F take) {
  try {
    py::gil_scoped_release no_gil;
    return take();
  } catch (const Closed&) {
    throw py::stop_iteration();
  }
}

void BindQueue(py::module_& m) {
  py::class_<BatchingQueue, std::shared_ptr<BatchingQueue>>(
      m, "BatchingQueue",
      "A bounded first-in-first-out queue. Dicts of tensors [T, columns, ...] go in, and batches\n"
      "of exactly `batch_size` columns come out. `for batch in queue:` ends when it is closed.")
      .def(py::init<int64_t, int64_t>(), py::arg("batch_size"), py::arg("capacity"))
      .def(
          "enqueue",
          [](BatchingQueue& queue, const py::dict& item) {
            Dict arrays = DictFrom(item);
            py::gil_scoped_release no_gil;
            queue.Enqueue(std::move(arrays));
          },
          "Waits while the queue holds `capacity` columns or more.\n\n"
          "Raises ClosedBatchingQueue, or ValueError for names, dtypes or shapes that differ from\n"
          "the first item's.")
      .def(
          "dequeue",
          [](BatchingQueue& queue, const std::optional<py::dict>& into) {
            const Dict lent = into ? DictFrom(*into, LentFrom) : Dict();
            Dict batch;
            {
              py::gil_scoped_release no_gil;
              batch = queue.Dequeue(lent);
            }
            return into ? *into : DictTo(batch);
          },
          py::arg("into") = std::nullopt,
          "Waits for a whole batch. With `into`, tensors [T, batch_size, ...], it copies the "
          "batch\n"
          "into them and returns them. It keeps them only until it returns.\n\n"
          "Raises ClosedBatchingQueue, or ValueError if `into` differs from the first item.")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__",
           [](BatchingQueue& queue) { return DictTo(Next([&] { return queue.Dequeue(); })); })
      .def("size", &BatchingQueue::size, NoGil(), "The number of columns inside.")
      .def("close", &BatchingQueue::Close, NoGil(),
           "Drops what the queue holds. Calls that wait, and later calls, raise\n"
           "ClosedBatchingQueue.");
}

void BindBatcher(py::module_& m) {
  py::class_<Batch>(m, "Batch",
                    "Requests that are answered together. len() is their number of columns.")
      .def("__len__", &Batch::columns)
      .def(
          "get_inputs",
          [](const Batch& batch, const std::optional<std::pair<py::dict, py::tuple>>& into) {
            NetIO lent, inputs;
            if (into) lent = {DictFrom(into->first, LentFrom), StateFrom(into->second, LentFrom)};
            {
              py::gil_scoped_release no_gil;
              inputs = batch.GetInputs(into ? &lent : nullptr);
            }
            return into ? py::make_tuple(into->first, into->second) : PairTo(inputs);
          },
          py::arg("into") = std::nullopt,
          "Returns (inputs, core_state): a dict of tensors [1, B, ...] and a tuple of tensors\n"
          "[layers, B, ...]. With `into`, a pair of such tensors, it copies them into these and\n"
          "returns them. It keeps them only until it returns.\n\n"
          "Raises ValueError if `into` differs from the requests.")
      .def(
          "set_outputs",
          [](Batch& batch, const std::pair<py::dict, py::iterable>& outputs) {
            const NetIO arrays{DictFrom(outputs.first), StateFrom(outputs.second)};
            py::gil_scoped_release no_gil;
            batch.SetOutputs(arrays);
          },
          py::arg("outputs"),
          "Takes (outputs, core_state), shaped like the inputs, and gives each caller its\n"
          "columns. Raises ValueError for another number of columns, or at a second call.");

  py::class_<DynamicBatcher, std::shared_ptr<DynamicBatcher>>(
      m, "DynamicBatcher",
      "Joins the requests of many threads. A batch is ready when `minimum_batch_size` columns\n"
      "wait, or when the oldest request has waited for `timeout_ms`. It has at most\n"
      "`maximum_batch_size` columns. `for batch in batcher:` ends when the batcher is closed.")
      .def(py::init([](int64_t minimum, int64_t maximum, double timeout_ms) {
             return std::make_shared<DynamicBatcher>(
                 minimum, maximum,
                 std::chrono::microseconds(static_cast<int64_t>(1000 * timeout_ms)));
           }),
           py::arg("minimum_batch_size"), py::arg("maximum_batch_size"), py::arg("timeout_ms"))
      .def(
          "compute",
          [](DynamicBatcher& batcher, const py::dict& inputs, const py::iterable& core_state) {
            NetIO arrays{DictFrom(inputs), StateFrom(core_state)};
            {
              py::gil_scoped_release no_gil;
              arrays = batcher.Compute(std::move(arrays));
            }
            return PairTo(arrays);
          },
          py::arg("inputs"), py::arg("core_state") = py::tuple(),
          "Waits for the answer to (inputs, core_state) and returns (outputs, core_state).\n\n"
          "Raises ClosedBatchingQueue, ValueError for a request unlike the first one, or\n"
          "RuntimeError if the batch was dropped without an answer.")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", [](DynamicBatcher& batcher) { return Next([&] { return batcher.Next(); }); })
      .def("size", &DynamicBatcher::size, NoGil(),
           "The number of columns that no batch has taken yet.")
      .def("close", &DynamicBatcher::Close, NoGil(),
           "Calls that wait, also those whose batch was handed out, and later calls raise\n"
           "ClosedBatchingQueue.");
}

py::dict ObservationsOf(const Spec& spec) {
  py::dict leaves;
  for (const Leaf& leaf : spec.observations) {
    leaves[py::str(leaf.name)] = py::make_tuple(py::tuple(py::cast(leaf.shape)), leaf.dtype.name());
  }
  return leaves;
}

// Of the leaves for which `number` is more than `least`.
py::dict NumbersOf(const Spec& spec, int64_t Leaf::* number, int64_t least) {
  py::dict numbers;
  for (const Leaf& leaf : spec.observations) {
    if (leaf.*number > least) numbers[py::str(leaf.name)] = leaf.*number;
  }
  return numbers;
}

void BindPool(py::module_& m) {
  py::class_<Spec>(
      m, "Spec",
      "What a server says about its environments. libtorchbeast.spec.Spec is the same in Python.")
      .def_readonly("num_envs", &Spec::num_envs)
      .def_readonly("action_kind", &Spec::action_kind)
      .def_readonly("action_sizes", &Spec::action_sizes)
      .def_readonly("frames_per_step", &Spec::frames_per_step)
      .def_readonly("name", &Spec::name)
      .def_property_readonly("row_bytes", &Spec::row_bytes)
      .def_property_readonly("observations", &ObservationsOf)
      .def_property_readonly("stacks",
                             [](const Spec& spec) { return NumbersOf(spec, &Leaf::stack, 1); })
      .def_property_readonly("sets",
                             [](const Spec& spec) { return NumbersOf(spec, &Leaf::set_size, 0); });

  py::class_<StreamMonitor::Status>(m, "Status", "The state of an actor's stream.")
      .def_readonly("address", &StreamMonitor::Status::address)
      .def_readonly("opening", &StreamMonitor::Status::opening)
      .def_readonly("connected", &StreamMonitor::Status::connected)
      .def_readonly("failures", &StreamMonitor::Status::failures)
      .def_readonly("last_error", &StreamMonitor::Status::last_error);

  const auto make_pool = [](int64_t unroll_length, std::shared_ptr<BatchingQueue> queue,
                            std::shared_ptr<DynamicBatcher> batcher,
                            const std::vector<std::string>& addresses,
                            const py::iterable& initial_core_state, const Spec& spec,
                            double step_timeout, double reset_timeout, const PemTexts& tls,
                            int64_t max_rollout_bytes) {
    ActorPool::Options options;
    options.spec = spec;
    options.unroll_length = unroll_length;
    options.initial_core_state = StateFrom(initial_core_state);
    options.step_timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * step_timeout));
    options.reset_timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * reset_timeout));
    options.max_rollout_bytes = max_rollout_bytes;
    py::gil_scoped_release no_gil;
    return std::shared_ptr<ActorPool>(
        new ActorPool(std::move(options), std::move(queue), std::move(batcher),
                      std::make_shared<GrpcTransport>(TlsFrom(tls)), addresses),
        [](ActorPool* pool) {  // joins threads that may need the GIL
          py::gil_scoped_release no_gil;
          delete pool;
        });
  };
  py::class_<ActorPool, std::shared_ptr<ActorPool>> pool(
      m, "ActorPool",
      "One thread and one stream for each of `addresses`. A stream that fails is opened again.\n"
      "Whole rollouts, dicts of tensors [T+1, N, ...] and core_state/i [layers, N, ...], go to\n"
      "`learner_queue`. A stream whose rollouts would have more than `max_rollout_bytes` fails.");
  pool.attr("ACTIVITIES") = py::tuple(py::cast(ActorTimes::kActivities));
  pool.def(py::init(make_pool), py::arg("unroll_length"), py::arg("learner_queue"),
           py::arg("inference_batcher"), py::arg("addresses"), py::arg("initial_core_state"),
           py::arg("spec"), py::arg("step_timeout") = 60.0, py::arg("reset_timeout") = 300.0,
           py::arg("tls") = std::nullopt,
           py::arg("max_rollout_bytes") = ActorPool::Options().max_rollout_bytes)
      .def("status", &ActorPool::status, NoGil(), "Returns a Status for each of the addresses.")
      .def("take_events", &ActorPool::TakeEvents, NoGil(),
           "Returns what went wrong since the last call, as strings\n"
           "\"actor NUMBER, ADDRESS: CODE: text\".\n\n"
           "Raises RuntimeError if the pool ended itself because outputs broke the contract.")
      .def("seconds", &ActorPool::seconds, NoGil(),
           "Returns the seconds that all actors together spent in each of ACTIVITIES:\n\n"
           "environment: the environments' step, as their servers measured it\n"
           "transport: the rest of the time until a server's answer was there\n"
           "batching: until an inference thread took the row\n"
           "inference: until it had answered\n"
           "actor_waiting: until the learner's queue took the rollout")
      .def("latencies", &ActorPool::latencies, NoGil(),
           "Returns a histogram of the time from a row's arrival until its actions were sent.\n"
           "Bin i of 240 counts 2^(i/8) to 2^((i+1)/8) microseconds. The first and the last bin\n"
           "take what is beyond them.")
      .def("close", &ActorPool::Close, NoGil(),
           "Ends all streams and threads, and closes the queue and the batcher.");
}

}  // namespace
}  // namespace torchbeast

PYBIND11_MODULE(_C, m) {
  using namespace torchbeast;
  m.doc() =
      "PolyBeast's queues, batching and streams. Dimension 1 of every tensor is the column, which\n"
      "is one environment.";
  py::register_exception<Closed>(m, "ClosedBatchingQueue", PyExc_RuntimeError);
  py::register_exception<StreamError>(m, "StreamError", PyExc_ConnectionError);
  BindQueue(m);
  BindBatcher(m);
  BindPool(m);
  m.def(
      "describe",
      [](const std::string& address, double timeout, const PemTexts& tls) {
        py::gil_scoped_release no_gil;
        const std::chrono::milliseconds limit(static_cast<int64_t>(1000 * timeout));
        return Describe(address, limit, TlsFrom(tls));
      },
      py::arg("address"), py::arg("timeout") = 10.0, py::arg("tls") = std::nullopt,
      "Asks the server at `address` for its Spec. Raises StreamError.");
  m.def(
      "exchange", [](py::handle array) { return TensorFrom(ArrayFrom("array", array)); },
      py::arg("array"),
      "Returns the array as a tensor, as if it had passed through a queue. For tests.");
}
