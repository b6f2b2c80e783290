"""Servers of RisingWave's published packages, unmodified: arrow_udf_server.py PORT PORT_OF_VERSION_1

arrow-udf speaks version 2 of their protocol; risingwave, its forerunner, version 1.
"""

import sys
import threading

import risingwave.udf
from arrow_udf import UdfServer, udf


@udf(input_types=["INT", "INT"], result_type="INT")
def common_divisor(x, y):
    while y:
        x, y = y, x % y
    return x


@udf(input_types=["VARCHAR"], result_type="VARCHAR")
def reversed_text(text):
    return None if text is None else text[::-1]


@udf(input_types=["DECIMAL", "JSONB"], result_type="DECIMAL")
def scaled(value, options):
    return value * options["factor"]


@udf(input_types=[], result_type="INT")
def forty():
    return 40


@udf(input_types=["INT"], result_type="INT")
def missing(x):
    return {}[x]


@risingwave.udf.udf(input_types=["DECIMAL", "JSONB", "VARCHAR"], result_type="JSONB")
def described(value, options, name):
    return {"name": name, "value": str(value), "factor": options and options["factor"]}


@risingwave.udf.udf(input_types=["DECIMAL"], result_type="DECIMAL")
def doubled(value):
    return value * 2


@risingwave.udf.udtf(input_types=["INT"], result_types="INT")
def below(n):
    yield from range(n)


server = UdfServer(location=f"127.0.0.1:{sys.argv[1]}")
for function in (common_divisor, reversed_text, scaled, forty, missing):
    server.add_function(function)
old_server = risingwave.udf.UdfServer(location=f"127.0.0.1:{sys.argv[2]}")
for function in (described, doubled, below):
    old_server.add_function(function)
# serve() would set a signal handler; a Flight server listens once it is made.
threading.Event().wait()
