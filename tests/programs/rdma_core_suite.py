"""Runs rdma-core's test suite. The output file gets one line per test: name, outcome, reason and seconds, separated by tabs.

Usage: rdma_core_suite.py SUITE DIRECTORY OUTPUT [PREFIX...]
SUITE is the suite as Debian installs it, with some files compressed. It is unpacked in DIRECTORY. Only tests whose names begin with a PREFIX run.
"""

import faulthandler
import gzip
import pathlib
import sys
import time
import traceback
import unittest

# A test that runs longer hangs. The process then prints its stack and exits, and the tests that
# have not run are missing.
SECONDS_PER_TEST = 40


class Outcomes(unittest.TestResult):
    """Writes each outcome as soon as it is known, so that a crash does not lose those before it."""

    def __init__(self, output):
        super().__init__()
        self.output = output
        self.outcome = None

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.begin = ("pass", ""), time.monotonic()
        print(f"running {name(test)}", flush=True)
        faulthandler.dump_traceback_later(SECONDS_PER_TEST, exit=True)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        outcome, reason = self.outcome
        seconds = time.monotonic() - self.begin
        self.output.write(f"{name(test)}\t{outcome}\t{' '.join(reason.split())}\t{seconds:.2f}\n")
        self.output.flush()

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = ("skip", reason)

    def addError(self, test, error):
        self.add_exception("error", error)

    def addFailure(self, test, error):
        self.add_exception("fail", error)

    def addSubTest(self, test, subtest, error):
        if error:
            self.add_exception("fail" if issubclass(error[0], test.failureException) else "error", error)

    def add_exception(self, outcome, error):
        traceback.print_exception(*error, file=sys.stdout)
        # A test may fail and its clean-up after it: the first reason is the one that matters.
        if self.outcome[0] in ("pass", "skip"):
            self.outcome = (outcome, f"{error[0].__name__}: {error[1]}")


def name(test):
    return test.id().removeprefix("tests.")


def unpack(suite, directory):
    package = pathlib.Path(directory, "tests")
    package.mkdir()
    for source in pathlib.Path(suite).iterdir():
        data = source.read_bytes()
        if source.suffix == ".gz":
            data = gzip.decompress(data)
        (package / source.name.removesuffix(".gz")).write_bytes(data)
    # The package imports args_parser as a module of its own.
    sys.path[:0] = [str(directory), str(package)]


def all_tests(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from all_tests(test)
        else:
            yield test


def main():
    suite, directory, output, *prefixes = sys.argv[1:]
    unpack(suite, directory)
    from args_parser import parser

    sys.argv[1:] = []
    parser.parse_args()
    import tests

    found = all_tests(unittest.defaultTestLoader.loadTestsFromModule(tests))
    wanted = unittest.TestSuite(t for t in found if not prefixes or name(t).startswith(tuple(prefixes)))
    with open(output, "w") as file:
        wanted.run(Outcomes(file))


main()
