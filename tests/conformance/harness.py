"""What the programs of checks have in common: their register, what every framework has, and the run of them all in a rank."""

import json
import os
import signal
import sys
import traceback

INTEGERS = ("uint8", "int8", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCIBLE = INTEGERS + FLOATS
ALL = REDUCIBLE + ("bool", "uint16", "int16")

LIMIT_S = 180  # of a check, on a machine that has other things to do
SETS = []


class Checks(dict):
    """The checks of a program by name, in the order in which every rank runs them."""

    def check(self, **axes):
        """Registers a check, once for every value of its one axis."""

        def register(function):
            name = function.__name__
            if not axes:
                self[name] = function
            for axis, values in axes.items():
                for value in values:
                    label = getattr(value, "name", value)
                    self[f"{name}[{label}]"] = lambda axis=axis, value=value: function(**{axis: value})
            return function

        return register

    def run(self, rm):
        """Runs them in this rank, or those whose name contains the program's argument, and prints a line of JSON for each. One that takes
        longer than LIMIT_S ends the process, and the others hear of it. Rank 0 is a process set, and all others are one.
        """
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        SETS.extend([rm.ProcessSet([0]), rm.ProcessSet(range(1, int(os.environ["RINGMASTER_SIZE"])))])
        rm.init(process_sets=SETS)
        for name, function in self.items():
            if len(sys.argv) > 1 and sys.argv[1] not in name:
                continue
            signal.alarm(LIMIT_S)
            why = ""
            try:
                function()
            except Exception:
                why = traceback.format_exc()
            print(json.dumps({"check": name, "why": why}), flush=True)
        signal.alarm(0)



def raises(kinds, words, call, *arguments, **options):
    """Calls, and gives the error, one of these kinds, which says all the words."""
    try:
        call(*arguments, **options)
    except kinds as error:
        assert all(word in str(error) for word in words), str(error)
        return error
    raise AssertionError(f"nothing was raised; expected {kinds} with {words}")
