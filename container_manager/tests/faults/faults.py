"""Whether `transship conformance` finds what a server does wrong: faults.py TRANSSHIP

Each fault breaks one clause of docs/protocol.md, in the server of server.py, over one transport; the judge must name the case
that is about this clause. Without a fault it must find nothing, and skip only what is listed here.
"""

import collections
import concurrent.futures
import re
import subprocess
import sys
import threading

import server

# What may be skipped: types of which the server has no echo, and map functions over HTTP, which has no form for them.
ECHOES = "int4|float8|text|numeric|bytea"
MAY_SKIP = {"flight": rf"keeps every value of (?!({ECHOES}),)[a-z0-9(]+\)?, and NULL: the server has no function"}
MAY_SKIP["json"] = MAY_SKIP["socket"] = MAY_SKIP["flight"] + "|streams a map function|says that \"running_sum\" is of kind map|refers to .* of the calls.*: echo_date"
AGGREGATES = [
    ("forget ignored", "forgets the groups that it is told to"),
    ("groups outlive exchanges", "keeps the groups of exchanges apart"),
    ("merge replaces", "keeps an aggregate function's groups, and merges them"),
    ("finish resets", "keeps an aggregate function's groups, and merges them"),
]
# What every form can do wrong: fault, clause, case.
COMMON = [
    ("no name", "2", "says who it is and what it offers"),
    ("a function undescribed", "3", "describes its"),
    ("the unknown described", "3", "does not know an unrecognized function"),
    ("no kind of a aggregate function", "3", 'says that "total" is of kind aggregate'),
    ("NULL lost", "1", "keeps every value of int4, and NULL"),
    ("not a number lost", "1", "keeps every value of float8, and NULL"),
    ("NULL elements lost", "1", "keeps every value of int4[], and NULL"),
    ("attributes lost", "1", "keeps every value of (a int4, b text), and NULL"),
    ("long values cut", "1", "takes and gives 1 MiB of text"),
    ("long values cut", "1", "takes and gives 1 MiB of bytes"),
    ("decimals with exponents", "1", "writes decimals as digits"),
    ("one result for no arguments", "1", "answers a function without arguments once per row"),
    ("other numbers", "4.3", "answers batches in order, and rows in order"),
    ("rows reversed", "4.3", "answers batches in order, and rows in order"),
    ("one exchange at a time", "4.4", "answers 4 exchanges at a time"),
    ("results of row 0", "4.5", "gives a table function's results with their rows"),
    ("dies of cancelling", "4.8", "lives on when a client loses interest"),
    ("no stop", "4.8", "stops when a client loses interest"),
    ("no exception", "5", "tells the batch, the row and the text of an exception"),
    ("no row", "5", "tells the batch, the row and the text of an exception"),
    ("no text", "5", "tells the batch, the row and the text of an exception"),
    ("no traceback", "5", "tells the batch, the row and the text of an exception"),
    ("wrong kind", "5", "tells the batch, the row and the text of an exception"),
    ("lines lost", "4.11", "sends each client the lines of its own calls"),
    ("lines of others", "4.11", "sends each client the lines of its own calls"),
    ("the unknown called", "5", "refuses to call an unrecognized function"),
]
FLIGHT = [
    ("newer protocol", "2", "says who it is and what it offers"),
    ("no protocol_version", "2", "answers protocol_version as arrow-udf does"),
    ("old protocol_version", "2", "answers protocol_version as arrow-udf does"),
    ("nothing listed", "3", "lists its functions as it describes them"),
    ("one function unlisted", "3", "lists its functions as it describes them"),
    ("endpoints described", "3", "lists its functions as it describes them"),
    ("arguments uncounted", "3", "describes its"),
    ("no row", "3", 'says that "repeat" is of kind table'),
    ("no kind of a map function", "3", 'says that "running_sum" is of kind map'),
    ("another type given", "4.3", "answers batches in order, and rows in order"),
    ("large offsets refused", "4.1", "takes large offsets, and answers with them, of text"),
    ("large offsets refused", "4.1", "takes large offsets, and answers with them, of int4[]"),
    ("views refused", "4.1", "takes views, and answers with them, of bytea"),
    ("another layout given", "4.1", "takes views, and answers with them, of text"),
    ("another layout given", "4.1", "takes large offsets, and answers with them, of bytea"),
    ("large offsets refused", "4.1", "takes large offsets, and answers with them, of (a numeric, b numeric[])"),
    ("another layout given", "4.1", "takes views, and answers with them, of (a numeric, b numeric[])"),
    ("the unknown without batches", "5", "refuses an exchange of an unrecognized function that has no batches"),
    ("parts unmarked", "4.5", "gives a table function's results with their rows"),
    ("sums start again", "4.6", "streams a map function"),
    ("constants in the first row", "4.10", "takes constants, and those of the batch before"),
    ("going on after an error", "5", "ends the exchange with an error"),
    ("other types taken", "5", "refuses arguments of other types, and lives on"),
    *((fault, "4.7", case) for fault, case in AGGREGATES),
]
JSON = [
    ("newer protocol", "2", "says who it is and what it offers"),
    ("no kind of a table function", "3", 'says that "repeat" is of kind table'),
    ("unchecked: JSON", "6", "refuses what is not JSON"),
    ("unchecked: call", "6", "refuses JSON that is no call"),
    ("unchecked: columns", "6", "refuses a call with too few columns"),
    ("unchecked: lengths", "6", "refuses columns of other lengths than it has rows"),
    ("other types taken", "5", "refuses arguments of other types, and lives on"),
    ("unchecked: exchange", "6", "refuses to go on with an exchange that it does not know"),
    ("DELETE ignored", "6", "forgets an exchange that is deleted"),
    ("white space in base64 refused", "6", "reads base64 with white space"),
    ("decimals rounded", "6", "reads decimals as numbers, to the last digit"),
    ("decimals rounded", "6", "reads decimals as numbers in arrays and composite values"),
    ("exponents kept", "6", "reads decimals with exponents, and gives digits"),
    ("large decimals refused", "6", "reads decimals that no double can hold"),
    ("integers rounded", "6", "rounds no integer that is written as a float"),
    ("infinity for large numbers", "6", "refuses numbers that no double can hold"),
    ("numbers as strings refused", "6", "reads numbers as strings, and integral floats"),
    ("integral floats refused", "6", "reads numbers as strings, and integral floats"),
    ("constants in the first row", "6", "takes constants, and those of the batch before"),
    *((fault, "6", case) for fault, case in AGGREGATES),
]
COLUMNS = [
    ("unchecked: header cut off", "7", "refuses a header that is cut off"),
    ("unchecked: header no object", "7", "refuses a header that is not JSON"),
    ("unchecked: buffers outside", "7", "refuses buffers outside of the data"),
    ("unchecked: short buffers", "7", "refuses buffers that are too short"),
    ("unchecked: uncountable buffers", "7", "refuses buffers whose ends cannot be counted"),
    ("unchecked: too few buffers", "7", "refuses too few buffers"),
    ("unchecked: too many buffers", "7", "refuses too many buffers"),
    ("unchecked: many rows", "7", "refuses more rows than there are values"),
    ("unchecked: offsets outside", "7", "refuses offsets that point outside"),
    ("unchecked: descending offsets", "7", "refuses offsets that descend"),
    ("unchecked: other text", "7", "refuses text that is not UTF-8"),
    ("unchecked: segment missing", "7", "refuses a segment that is not there"),
    ("unchecked: segment outside", "7", "refuses a segment outside of the folder"),
    ("aliases unasked", "7.8", "refers to no buffers of the calls unasked: echo_int4"),
    ("aliases astray", "7.8", "refers to the right buffers of the calls: echo_int4"),
    ("texts encoded unasked", "7.9", "encodes no texts unasked"),
    ("indexes from 1", "7.9", "encodes texts as indexes into a dictionary"),
    ("constants in the first row", "7.11", "takes constants, and those of the batch before"),
    ("constants not kept", "7.11", "keeps constants for the requests that follow"),
    ("unchecked: constants by name", "7.11", "refuses constants of a batch before that had another name"),
    ("unchecked: constants missing", "7.11", "refuses constants of a batch before that brought none"),
    ("unchecked: constants outside", "7.11", "refuses constants that are no columns"),
]
EXPECTED = {"flight": COMMON + FLIGHT, "json": COMMON + JSON, "socket": COMMON + COLUMNS}
VERDICT = re.compile(r"  (ok|FAILED|skipped)\s+§(\S+)\s+(.*)")
WORKERS = 6


def judge(transship, form, fault, transports):
    """The verdicts of each transport: (outcome, clause, words)."""
    if form == "flight":
        # It answers from now on; serve() would only wait, and have one server at a time wait for signals.
        made = server.FlightServer(fault)
        port = made.port
    else:
        made = server.HttpServer(fault, transports)
        port = made.server_address[1]
        threading.Thread(target=made.serve_forever, daemon=True).start()
    scheme = "grpc" if form == "flight" else "http"
    run = subprocess.run([transship, "conformance", f"{scheme}://127.0.0.1:{port}"], capture_output=True, text=True, timeout=300)
    verdicts, transport = collections.defaultdict(list), None
    for line in run.stdout.splitlines():
        if " over " in line and not line.startswith(" "):
            transport = line.split()[-1]
        elif match := VERDICT.match(line):
            verdicts[transport].append(match.groups())
    made.shutdown()
    if not verdicts or run.returncode not in (0, 1):
        sys.exit(f"The judge did not judge the server with fault {fault!r}: {run.stdout}{run.stderr}")
    return verdicts, run.returncode


def wrongs_of_sound(verdicts, status):
    """What is wrong with the verdicts on a server without a fault."""
    wrongs = [f"exit status {status}"] if status else []
    for transport, found in verdicts.items():
        for outcome, clause, words in found:
            if outcome == "FAILED" or (outcome == "skipped" and not re.match(MAY_SKIP[transport], words)):
                wrongs.append(f"over {transport}: {outcome} §{clause} {words}")
    return wrongs


def main(transship):
    forms = {"flight": ["flight"], "http": ["json", "socket"]}
    asked = []
    for form, transports in forms.items():
        faults = {fault: [name for name in transports if fault in {fault for fault, _, _ in EXPECTED[name]}] for name in transports for fault, _, _ in EXPECTED[name]}
        # Whoever offers columns offers JSON as well.
        faults = {fault: transports if over == ["socket"] else over for fault, over in faults.items()}
        asked += [(form, fault, over) for fault, over in {None: transports, **faults}.items()]
    wrongs, count = [], 0
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        judged = pool.map(lambda words: judge(transship, *words), asked)
        for (form, fault, transports), (verdicts, status) in zip(asked, judged):
            if fault is None:
                wrongs += [f"No fault, {wrong}" for wrong in wrongs_of_sound(verdicts, status)]
                continue
            for transport in transports:
                failed = [(clause, words) for outcome, clause, words in verdicts[transport] if outcome == "FAILED"]
                for _, clause, case in [entry for entry in EXPECTED[transport] if entry[0] == fault]:
                    count += 1
                    if not any(found == clause and words.startswith(case) for found, words in failed):
                        wrongs.append(f"Fault {fault!r} over {transport}: the judge does not say §{clause} {case!r}, but {failed}")
    for wrong in wrongs:
        print(wrong, file=sys.stderr)
    print(f"The judge named {count - sum(wrong.startswith('Fault') for wrong in wrongs)} of {count} faults")
    sys.exit(bool(wrongs))


if __name__ == "__main__":
    main(sys.argv[1])
