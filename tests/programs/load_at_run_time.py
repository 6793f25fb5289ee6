"""Loads libibverbs and librdmacm with ctypes, finds the device, and looks up every symbol of the installed libraries in its version.

Sockets over RDMA (rsocket(7)) are not Mitra's.
"""

import ctypes
import signal
import subprocess
import sys

signal.alarm(60)
dlvsym = ctypes.CDLL(None).dlvsym
dlvsym.restype = ctypes.c_void_p
dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]

verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
count = ctypes.c_int()
devices = verbs.ibv_get_device_list(ctypes.byref(count))
assert count.value == 1, count
assert verbs.ibv_get_device_name(devices[0]) == b"mitra0"

rdmacm = ctypes.CDLL("librdmacm.so.1")
rdmacm.rdma_create_event_channel.restype = ctypes.c_void_p
channel = rdmacm.rdma_create_event_channel()
assert channel
rdmacm.rdma_destroy_event_channel.argtypes = [ctypes.c_void_p]
rdmacm.rdma_destroy_event_channel(channel)

for library, path in zip((verbs, rdmacm), sys.argv[1:], strict=True):
    symbols = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    found = 0
    for line in symbols.splitlines():
        name, has_default, version = line.split()[-1].partition("@@")
        if has_default and name.startswith(("ibv_", "rdma_")):
            address = dlvsym(library._handle, name.encode(), version.encode())
            assert address, f"{name}@@{version} is not defined"
            found += 1
    assert found > 40, path
assert dlvsym(verbs._handle, b"ibv_get_device_list", b"IBVERBS_1.0") is None, "the superseded ABI is not this library's"
assert dlvsym(verbs._handle, b"no_such_function", b"IBVERBS_1.1") is None
print("loaded")
