"""Debian's tgt serves a disk by iSER to libiscsi: 50 logins, then libiscsi's own tests of reads and writes."""

import os
import subprocess
import sys
import tempfile
import time

TARGET, INITIATOR = "iqn.2026-01.test:disk", "iqn.2026-01.test:initiator"
TESTS = ["ALL.CompareAndWrite.Simple", "ALL.Read10.Simple", "ALL.Read16.Simple", "ALL.Verify10", "ALL.Verify16", "ALL.Write10.Simple", "ALL.Write16.Simple"]


def main():
    directory = tempfile.mkdtemp()
    with open(f"{directory}/disk", "wb") as disk:
        disk.write(os.urandom(64 << 20))
    control = str(os.getpid() % 30000 + 1)
    # libiscsi reads `tx_desc` of its new connections, which it has not set. This makes new memory
    # zero (mallopt(3)).
    initiator = os.environ | {"MALLOC_PERTURB_": "255"}
    tgtd = subprocess.Popen(["tgtd", "-f", "-C", control, "--iser", "pool_sz_mb=64"])

    def administer(mode, *arguments, **options):
        line = ["tgtadm", "-C", control, "--lld", "iser", "--mode", mode, *arguments, "--tid", "1"]
        return subprocess.run(line, **options)

    def initiate(program, *arguments):
        url = f"iser://127.0.0.1/{TARGET}/1"
        line = [program, "-i", INITIATOR, *arguments, url]
        ended = subprocess.run(line, env=initiator, timeout=60, stdout=subprocess.PIPE, text=True)
        if ended.returncode != 0:
            sys.exit(f"{program}: {ended.returncode}\n{ended.stdout}")

    try:
        create = ["--op", "new", "--targetname", TARGET]
        while administer("target", *create, stderr=subprocess.DEVNULL).returncode != 0:
            assert tgtd.poll() is None, "tgtd ended"
            time.sleep(0.1)
        administer("logicalunit", "--op", "new", "--lun", "1", "--backing-store", f"{directory}/disk", check=True)
        administer("target", "--op", "bind", "--initiator-address", "ALL", check=True)
        administer("target", "--op", "bind", "--initiator-name", INITIATOR, check=True)
        for _ in range(50):
            initiate("iscsi-inq")
        for test in TESTS:
            initiate("iscsi-test-cu", "--dataloss", "--fail", "--test", test)
    finally:
        tgtd.kill()
        tgtd.wait()
    print(f"50 logins, and {len(TESTS)} groups of tests passed")


# tgtd refuses every other port than its own, so it gets a network namespace.
if sys.argv[1:] == ["inside"]:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    main()
else:
    namespaces = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    os.execvp("unshare", ["unshare", *namespaces, *user, sys.executable, __file__, "inside"])
