# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Simulates two machines by two network namespaces that a virtual cable connects.

This needs root and iproute2. No packet leaves the namespaces.
"""

import contextlib
import os
import shutil
import subprocess

HOSTS = {"envs": "10.77.0.1", "learner": "10.77.0.2"}


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class NoNamespaces(RuntimeError):
    """Network namespaces cannot be made here. The text says why."""


@contextlib.contextmanager
def two_machines():
    """Yields {"envs": namespace, "learner": namespace}. In both, the device `cable` is one end of
    the cable."""
    if shutil.which("ip") is None:
        raise NoNamespaces("needs iproute2: apt-get install iproute2")
    names = {machine: f"torchbeast-{machine}-{os.getpid()}" for machine in HOSTS}
    with contextlib.ExitStack() as stack:
        for name in names.values():
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                why = f"may not make network namespaces: {error.stderr.strip()}"
                raise NoNamespaces(why) from error
            stack.callback(ip, "netns", "delete", name)
        envs, learner = names.values()
        cable = "link add cable netns {} type veth peer name cable netns {}"
        ip(*cable.format(envs, learner).split())
        for machine, name in names.items():
            ip("-n", name, "address", "add", f"{HOSTS[machine]}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names


def on(namespace):
    return ["ip", "netns", "exec", namespace]
