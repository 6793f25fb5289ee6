"""Migrates a running guest from one QEMU to another by RDMA, without KVM and without an operating system.

The guest is a boot sector that counts in memory, so pages change while they are sent. 64 MiB of random bytes lie in its memory. At the
end the memories of both ends are compared, and the guest goes on to count at the destination.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

# mov ax, 0x2000; mov ds, ax; loop: inc word [0]; inc word [0x1000]; jmp loop
BOOT = bytes.fromhex("b800208ed8ff060000ff060010ebf6").ljust(510, b"\0") + b"\x55\xaa"
COUNTER = 0x20000
DEADLINE = time.monotonic() + 90


class Guest:
    def __init__(self, directory, name, *options):
        self.memory, path = f"{directory}/{name}.memory", f"{directory}/{name}.sock"
        line = ["qemu-system-x86_64", "-accel", "tcg", "-m", "160", "-display", "none", "-nodefaults", "-S"]
        line += ["-drive", f"if=floppy,format=raw,file={directory}/boot,readonly=on", "-boot", "a"]
        self.process = subprocess.Popen([*line, "-qmp", f"unix:{path},server,nowait", *options])
        self.socket = socket.socket(socket.AF_UNIX)
        wait(lambda: self.socket.connect_ex(path) == 0)
        self.replies = self.socket.makefile()
        json.loads(self.replies.readline())
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        line = json.dumps({"execute": command, "arguments": arguments})
        self.socket.sendall(line.encode() + b"\n")
        while True:
            reply = json.loads(self.replies.readline())
            if "error" in reply:
                sys.exit(f"{command}: {reply['error']['desc']}")
            if "return" in reply:
                return reply["return"]

    def read(self, address, length):
        self("pmemsave", val=address, size=length, filename=self.memory)
        with open(self.memory, "rb") as file:
            return file.read()

    def count(self):
        return int.from_bytes(self.read(COUNTER, 2), "little")

    def migration(self):
        status = self("query-migrate")
        if status.get("status") == "failed":
            sys.exit(f"the migration failed: {status.get('error-desc', 'no reason given')}")
        return status


def wait(condition):
    while not condition():
        if time.monotonic() > DEADLINE:
            sys.exit("90 s were not enough")
        time.sleep(0.05)


def main():
    directory = tempfile.mkdtemp()
    with open(f"{directory}/boot", "wb") as boot, open(f"{directory}/random", "wb") as data:
        boot.write(BOOT)
        data.write(os.urandom(64 << 20))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    destination = Guest(directory, "destination", "-incoming", f"rdma:127.0.0.1:{port}")
    source = Guest(directory, "source", "-device", f"loader,file={directory}/random,addr=0x2000000,force-raw=on")
    try:
        source("cont")
        wait(lambda: source.count() > 0)
        source("migrate-set-parameters", **{"max-bandwidth": 1 << 30})
        source("migrate", uri=f"rdma:127.0.0.1:{port}")
        wait(lambda: source.migration().get("status") == "completed")
        wait(lambda: destination("query-status")["status"] == "paused")
        digests = [hashlib.sha256(end.read(0, 160 << 20)).hexdigest() for end in (source, destination)]
        count = destination.count()
        destination("cont")
        wait(lambda: destination.count() != count)
        megabytes = source.migration()["ram"]["transferred"] >> 20
        print(f"{megabytes} MiB sent; the memories are {digests[0]} and {digests[1]}")
        sys.exit(digests[0] != digests[1])
    finally:
        for guest in (source, destination):
            guest.process.kill()
            guest.process.wait()


main()
