"""pair.py PORT SERVER CLIENT: starts a server, and its client when the server listens at the TCP port. Both must end with success."""

import socket
import subprocess
import sys
import time

port, server, client = int(sys.argv[1]), *sys.argv[2:]


def listens():
    # /proc/net/tcp: the state 0A is LISTEN. A connection would be the one that the server accepts.
    with open("/proc/net/tcp") as tcp, open("/proc/net/tcp6") as tcp6:
        columns = [line.split() for line in [*tcp, *tcp6]]
    return any(column[1].endswith(f":{port:04X}") and column[3] == "0A" for column in columns)


running = subprocess.Popen([server])
while not listens():
    if running.poll() is not None:
        sys.exit("the server ended")
    time.sleep(0.05)
try:
    subprocess.run([client], check=True, timeout=60)
    sys.exit(running.wait(60))
finally:
    running.kill()
