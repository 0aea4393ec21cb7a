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
from tests.support.monobeast import IN_ORDER
from tests.support.processes import ROOT, load

exchange = _C.exchange
DTYPES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 "
    "complex32 complex64 complex128"
).split()


def numbers(dtype, shape=(2, 3, 4)):
    """A tensor of random bytes; a bool's are 0 and 1."""
    count, high = math.prod(shape), 2 if dtype == torch.bool else 256
    data = np.random.default_rng(0).integers(0, high, count * dtype.itemsize, np.uint8)
    return torch.from_numpy(data).view(dtype).view(shape) if count else torch.empty(shape).to(dtype)


NOT_CONTIGUOUS = {
    "permuted": lambda t: t.permute(2, 0, 1),
    "every second": lambda t: t[:, ::2],
    "expanded": lambda t: t[:1].expand(5, 3, 4),
}  # tests/core has all kinds of strides


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES], ids=str)
def test_a_tensor_passes_as_it_is_and_is_copied_only_if_it_is_not_contiguous(dtype):
    tensors = {shape: numbers(dtype, shape) for shape in ((2, 3, 4), (), (3, 0, 2))}
    tensors |= {name: change(numbers(dtype)) for name, change in NOT_CONTIGUOUS.items()}
    for which, tensor in tensors.items():
        seen = exchange(tensor)
        assert type(seen) is torch.Tensor and seen.is_contiguous(), which
        assert (seen.dtype, seen.shape) == (dtype, tensor.shape), which
        assert bytes_of(seen) == bytes_of(tensor), which
        assert tensor.is_contiguous() == (which not in NOT_CONTIGUOUS)
        assert (seen.data_ptr() == tensor.data_ptr()) == tensor.is_contiguous(), which


@pytest.mark.parametrize("name", [n for n in DTYPES if n not in ("bfloat16", "complex32")])
def test_numpys_arrays_pass_too(name):
    array = numbers(getattr(torch, name)).numpy()
    assert exchange(array).data_ptr() == array.ctypes.data
    backwards = array[::-1, :, ::-2]  # negative strides, which torch itself does not have
    for passed in (array, backwards, np.array(array[1, 2, 3]), array[:, :0]):
        seen = exchange(passed)
        assert seen.shape == passed.shape and bytes_of(seen) == passed.tobytes()


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


@pytest.mark.parametrize("step", [1, 2])
def test_memory_lives_as_long_as_its_last_user_and_no_longer(step):
    memory = Memory(range(200))
    alive = weakref.ref(memory)
    seen = exchange(np.frombuffer(memory, np.uint8)[::step])
    del memory
    gc.collect()
    assert (alive() is not None) == (step == 1)  # a copy does not need it
    assert seen.tolist() == list(range(0, 200, step))
    del seen
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "array, text",
    [
        (torch.zeros(2, device="meta"), "meta"),
        (torch.zeros(2, requires_grad=True), "gradient.*detach"),
        (torch.zeros(2, dtype=torch.cfloat).conj(), "conj"),
        (np.array(["a"]), "DLPack"),
        (np.zeros(2, ">i4"), "DLPack"),
    ],
    ids="meta gradient conjugate text big-endian".split(),
)
def test_what_cannot_pass_is_refused(array, text):
    with pytest.raises((ValueError, BufferError), match=text):
        exchange(array)


def test_an_error_names_the_array():
    queue = BatchingQueue(1, 1)
    with pytest.raises(TypeError, match="^reward: expected a tensor or an array, seen .*'int'"):
        queue.enqueue({"frame": torch.zeros(1, 1), "reward": 1})
    assert queue.size() == 0


# In a process of its own: one that waits for the GIL for ever cannot be ended from inside.
WAITS = """
import threading
import torch
from libtorchbeast._C import BatchingQueue, DynamicBatcher, ClosedBatchingQueue

x, ended = {"x": torch.zeros(1, 1)}, []
queue, full = BatchingQueue(1, 1), BatchingQueue(1, 1)
batcher, idle = DynamicBatcher(1, 1, 1e6), DynamicBatcher(2, 2, 1e6)
full.enqueue(x)

def run(wait):
    try:
        wait()
    except (ClosedBatchingQueue, StopIteration):
        ended.append(wait)

waits = [queue.dequeue, lambda: next(queue), lambda: full.enqueue(x), lambda: next(idle),
         lambda: idle.compute(x), lambda: batcher.compute(x)]
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
    assert subprocess.check_output(command, cwd=ROOT, timeout=GUARD_S) == b"ended\n"


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


# In a process of its own, in which nothing has imported the extension.
WITHOUT = """
import sys
sys.modules["libtorchbeast._C"] = None
import monobeast, polybeast
savedir, *flags = sys.argv[1:]
try:
    polybeast.main(["--savedir", savedir, "--xpid", "none"])
except SystemExit as error:
    print(error.code)
monobeast.main(["--savedir", savedir, "--xpid", "run", *flags])
"""


def test_without_the_extension_polybeast_says_so_and_monobeast_runs(tmp_path):
    flags = [*IN_ORDER, *"--net polybeast.Net --barrier_updates 1 --unroll_length 4".split()]
    flags += "--total_steps 10 --torch_threads 1".split()
    command = [sys.executable, "-c", WITHOUT, tmp_path, *flags]
    printed = subprocess.check_output(command, cwd=ROOT, timeout=GUARD_S, text=True)
    assert printed.startswith("polybeast: error: PolyBeast needs its C++ extension; build it with")
    assert "python setup.py build_ext --inplace" in printed.partition("\n")[0]
    assert {path.name for path in tmp_path.iterdir()} == {"run", "latest"}
    assert load(tmp_path / "run")["net"] == "polybeast.Net"
