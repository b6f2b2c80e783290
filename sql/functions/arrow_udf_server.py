"""A server of RisingWave's published package arrow-udf, unmodified: arrow_udf_server.py PORT"""

import sys

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


server = UdfServer(location=f"127.0.0.1:{sys.argv[1]}")
for function in (common_divisor, reversed_text, scaled, forty, missing):
    server.add_function(function)
server.serve()
