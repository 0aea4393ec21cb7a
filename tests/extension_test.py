# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension as Python loads it, and the arrays that it takes and gives (DLPack)."""

import gc
import math
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from libtorchbeast import _C, BatchingQueue
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv import client
from tests.support.extension import GUARD_S, bytes_of
from tests.support.polybeast import CATCH, SMALL, Poly
from tests.support.processes import ROOT, Program, load

pytestmark = pytest.mark.usefixtures("one_thread")

exchange = _C.exchange
DTYPES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 "
    "complex32 complex64 complex128"
).split()


def numbers(dtype, shape=(2, 3, 4)):
    """A tensor of random bytes; a bool's are 0 and 1."""
    count, high = math.prod(shape), 2 if dtype == torch.bool else 256
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    data = np.random.default_rng(0).integers(0, high, count * dtype.itemsize, np.uint8)
    return torch.from_numpy(data).view(dtype).view(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4), (), (3, 0, 2)], ids=str)
def test_a_tensor_passes_as_it_is_and_without_a_copy(dtype, shape):
    tensor = numbers(dtype, shape)
    seen = exchange(tensor)
    assert type(seen) is torch.Tensor and seen.is_contiguous()
    assert (seen.dtype, seen.shape) == (dtype, tensor.shape)
    assert bytes_of(seen) == bytes_of(tensor)
    assert seen.data_ptr() == tensor.data_ptr()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES], ids=str)
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.permute(2, 0, 1),
        lambda t: t[:, ::2],
        lambda t: t[..., 1],
        lambda t: t[:1].expand(5, 3, 4),
        lambda t: t[1, 2, 3].expand(2, 2),
        lambda t: t.as_strided((3, 3), (1, 1)),
        lambda t: t.unsqueeze(0).to(memory_format=torch.channels_last),
    ],
    ids="permuted every-second selected expanded scalar-expanded overlapping channels-last".split(),
)
def test_what_is_not_contiguous_is_copied(dtype, change):
    tensor = change(numbers(dtype))
    assert not tensor.is_contiguous()
    seen = exchange(tensor)
    assert seen.is_contiguous() and seen.data_ptr() != tensor.data_ptr()
    assert (seen.dtype, seen.shape) == (dtype, tensor.shape)
    assert bytes_of(seen) == bytes_of(tensor)


@pytest.mark.parametrize("name", [n for n in DTYPES if n not in ("bfloat16", "complex32")])
def test_numpys_arrays_pass_too(name):
    array = numbers(getattr(torch, name)).numpy()
    seen = exchange(array)
    assert seen.data_ptr() == array.ctypes.data
    assert bytes_of(seen) == array.tobytes()
    backwards = array[::-1, :, ::-2]  # negative strides, which torch itself does not have
    seen = exchange(backwards)
    assert seen.shape == backwards.shape and bytes_of(seen) == backwards.tobytes()
    scalar = np.array(array[1, 2, 3])
    assert bytes_of(exchange(scalar)) == scalar.tobytes()
    assert exchange(array[:, :0]).shape == (2, 0, 4)


@pytest.mark.parametrize("kind", [3, 11], ids=["CUDA", "ROCm"])
def test_page_locked_memory_is_the_hosts(kind):
    """torch describes the tensors of `to_host` like this. The test needs no GPU."""
    tensor = torch.arange(6)

    class Pinned:
        __dlpack__ = tensor.__dlpack__

        def __dlpack_device__(self):
            return kind, 0

    assert exchange(Pinned()).data_ptr() == tensor.data_ptr()


class Memory(bytearray):
    """Memory that can have a weak reference."""


@pytest.mark.parametrize("contiguous", [True, False])
def test_memory_lives_as_long_as_its_last_user_and_no_longer(contiguous):
    memory = Memory(range(200))
    alive = weakref.ref(memory)
    array = np.frombuffer(memory, np.uint8)[:: 1 if contiguous else 2]
    seen = exchange(array)
    del memory, array
    gc.collect()
    assert (alive() is not None) == contiguous  # a copy does not need it
    assert seen.tolist() == list(range(0, 200, 1 if contiguous else 2))
    del seen
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: [1, 2], TypeError, "array: expected a tensor or an array, seen <class 'list'>"),
        (lambda: torch.zeros(2, device="meta"), (ValueError, BufferError), "meta"),
        (lambda: torch.zeros(2, requires_grad=True), (ValueError, BufferError), "gradient.*detach"),
        (lambda: torch.zeros(2, dtype=torch.cfloat).conj(), (ValueError, BufferError), "conj"),
        (lambda: np.array(["a"]), (ValueError, BufferError), "DLPack"),
        (lambda: np.zeros(2, ">i4"), (ValueError, BufferError), "DLPack"),
    ],
)
def test_what_cannot_pass_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        exchange(make())


def test_an_error_names_the_array():
    queue = BatchingQueue(1, 1)
    with pytest.raises(TypeError, match="^reward: expected a tensor or an array, seen .*'int'"):
        queue.enqueue({"frame": torch.zeros(1, 1), "reward": 1})
    assert queue.size() == 0


# In a process of its own: one that waits for the GIL for ever cannot be ended from inside.
WAITS = """
import sys, threading
import torch
from libtorchbeast._C import BatchingQueue, DynamicBatcher, ClosedBatchingQueue

x = {"x": torch.zeros(1, 1)}
queue, full, batcher = BatchingQueue(1, 1), BatchingQueue(1, 1), DynamicBatcher(1, 1, 1e6)
idle = DynamicBatcher(2, 2, 1e6)
full.enqueue(x)
waits = [queue.dequeue, lambda: next(queue), lambda: full.enqueue(x), lambda: next(idle),
         lambda: idle.compute(x), lambda: batcher.compute(x)]
ended = []

def run(wait):
    try:
        wait()
    except (ClosedBatchingQueue, StopIteration):
        ended.append(wait)

threads = [threading.Thread(target=run, args=(wait,)) for wait in waits]
for thread in threads:
    thread.start()
batch = next(batcher)  # so that one waits for an answer
for i in range(100_000):  # Python goes on, also in this thread
    queue.size(), full.size(), batcher.size()
assert not ended
for closable in (queue, full, batcher, idle):
    closable.close()
for thread in threads:
    thread.join()
assert len(ended) == len(waits)
print("ended")
"""


def test_whatever_waits_lets_other_threads_run():
    command = [sys.executable, "-c", WAITS]
    printed = subprocess.check_output(command, cwd=ROOT, text=True, timeout=GUARD_S)
    assert printed == "ended\n"


BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "libtorchbeast._C":
            raise ImportError("No module named 'libtorchbeast._C'")

sys.meta_path.insert(0, Blocker())
"""


def test_an_extension_without_grpc_says_so_and_defines_what_the_other_defines(monkeypatch):
    """To build it would take 15 seconds. A definition that no header declares is an error here."""
    words = "g++ -std=c++17 -fsyntax-only -Wall -Wextra -Wmissing-declarations -Werror".split()
    source = ROOT / "libtorchbeast/src/no_transport.cc"
    subprocess.run([*words, source], check=True)
    (told,) = re.findall(r'"(the extension was built without gRPC.*)"', source.read_text())

    def describe(*args):
        raise _C.StreamError(f"UNIMPLEMENTED: {told}")

    monkeypatch.setattr(client.libtorchbeast, "describe", describe, raising=False)
    with pytest.raises(UserError, match="^UNIMPLEMENTED: the extension was built without gRPC"):
        client.first_description(["unix:/nowhere"], 60.0)


def test_without_the_extension_polybeast_says_so_and_monobeast_runs(tmp_path):
    """MonoBeast with the network of PolyBeast, at that."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    with Poly(tmp_path, *SMALL, PYTHONPATH=tmp_path) as program:
        assert program.wait_for_end() == 1
        program.wait_until_nothing_is_left()
    assert "Traceback" not in program.printed()
    last = program.printed().strip().splitlines()[-1]
    assert last.startswith("polybeast: error: PolyBeast needs its C++ extension; build it with")
    assert "python setup.py build_ext --inplace" in last
    assert not program.path.exists()

    flags = "--net polybeast.Net --num_actors 0 --envs_per_actor 2 --batch_size 2".split()
    flags += "--barrier_updates 1 --unroll_length 4 --total_steps 10".split()
    with Program(tmp_path, *CATCH[:2], *flags, PYTHONPATH=tmp_path) as program:
        assert program.wait_for_end() == 0, program.printed()
    assert load(program.path)["net"] == "polybeast.Net"
