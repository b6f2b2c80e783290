"""A host in a few lines, for what the test host's language cannot say: calls the extension's functions with chosen bytes.

    python bare_host.py EXTENSION CASE

Prints what the case found, as JSON.
"""

import ctypes
import json
import signal
import sys


class Guid(ctypes.Structure):
    _fields_ = [("data1", ctypes.c_uint32), ("data2", ctypes.c_uint16), ("data3", ctypes.c_uint16), ("data4", ctypes.c_uint8 * 8)]


SESSION = Guid(1, 2, 3)
BIT, BIGINT, CHAR, NUMERIC = -7, -25, 1, 2


class Host:
    """One session; each method gives the function's code."""

    def __init__(self, extension):
        self.library = ctypes.CDLL(extension)
        for name in ("Init", "InitSession", "InitColumn", "InitParam", "Execute", "GetResults", "GetTelemetryResults"):
            getattr(self.library, name).restype = ctypes.c_int16
        empty = ctypes.c_char_p(b""), ctypes.c_uint64(0)
        assert self.library.Init(*empty, *empty, *empty, *empty) == 0
        self.kept = []

    def init(self, script, columns, parameters=0):
        names = b"InputDataSet", ctypes.c_uint16(12), b"OutputDataSet", ctypes.c_uint16(13)
        counts = ctypes.c_uint16(columns), ctypes.c_uint16(parameters)
        return self.library.InitSession(SESSION, 0, 1, script, ctypes.c_uint64(len(script)), *counts, *names)

    def column(self, number, name, code, size):
        numbers = ctypes.c_int16(len(name)), ctypes.c_int16(code), ctypes.c_uint64(size), ctypes.c_int16(0)
        return self.library.InitColumn(SESSION, 0, number, name, *numbers, ctypes.c_int16(1), ctypes.c_int16(-1), ctypes.c_int16(-1))

    def parameter(self, number, name, code, size, value, indicator):
        numbers = ctypes.c_int16(len(name)), ctypes.c_int16(code), ctypes.c_uint64(size), ctypes.c_int16(0)
        return self.library.InitParam(SESSION, 0, number, name, *numbers, value, ctypes.c_int32(indicator), ctypes.c_int16(1))

    def execute(self, rows, *columns):
        """Each column is the bytes of its values, or None."""
        data = (ctypes.c_void_p * len(columns))()
        indicators = (ctypes.c_void_p * len(columns))()
        for number, values in enumerate(columns):
            if values is not None:
                self.kept.append(ctypes.create_string_buffer(values, len(values)))
                data[number] = ctypes.addressof(self.kept[-1])
        found = ctypes.c_uint16(99)
        return self.library.Execute(SESSION, 0, ctypes.c_uint64(rows), data, indicators, ctypes.byref(found)), found.value

    def results(self, column, element):
        rows, data, indicators = ctypes.c_uint64(), ctypes.POINTER(ctypes.c_void_p)(), ctypes.POINTER(ctypes.c_void_p)()
        code = self.library.GetResults(SESSION, 0, ctypes.byref(rows), ctypes.byref(data), ctypes.byref(indicators))
        return code, list(ctypes.string_at(data[column], rows.value * element)) if code == 0 else None


def bits(host):
    host.init(b'image = "regress:1.0" function = "add_one" passthrough = ["b"]', 2)
    host.column(0, b"b", BIT, 1), host.column(1, b"x", BIGINT, 8)
    code, _ = host.execute(4, b"01\0\1", (7).to_bytes(8, "little") * 4)
    return [code, *host.results(0, 1)]


def refused_buffers(host):
    host.init(b'image = "regress:1.0" function = "add_one"', 1)
    host.column(0, b"x", BIGINT, 8)
    first = host.execute(1, (7).to_bytes(8, "little"))
    before = host.results(0, 8)
    # Rows without data.
    second = host.execute(1, None)
    return [first, before, second, host.results(0, 8)]


def odd_length(host):
    host.init(b'image = "regress:1.0" function = "shout"', 0, 1)
    return [host.parameter(0, b"@text", CHAR, 10, b"abc", indicator) for indicator in (-3, -1, 3)]


def decimal_without_precision(host):
    host.init(b'image = "regress:1.0" function = "echo_numeric"', 0, 1)
    host.parameter(0, b"@arg1", NUMERIC, 38, b"\0\0\1" + (7).to_bytes(16, "little"), 19)
    return [host.execute(0), *host.results(0, 19)]


def counter_names(host):
    host.init(b'image = "regress:1.0" function = "add_one"', 1)
    count = ctypes.c_uint32()
    names, lengths = ctypes.POINTER(ctypes.c_void_p)(), ctypes.POINTER(ctypes.c_int32)()
    values = ctypes.POINTER(ctypes.c_int64)()
    places = [ctypes.byref(place) for place in (count, names, lengths, values)]
    code = host.library.GetTelemetryResults(SESSION, 0, *places)
    pairs = [(ctypes.string_at(names[i]).decode(), ctypes.string_at(names[i], lengths[i]).decode()) for i in range(count.value)]
    return [code, pairs]


def no_reader(host):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    codes = [host.init(b"nonsense", 1) for _ in range(3)]
    # A handler that the host installs later is not surprised by a signal of these.
    caught = []
    signal.signal(signal.SIGPIPE, lambda number, frame: caught.append(number))
    return [codes, caught]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](Host(sys.argv[1]))))
