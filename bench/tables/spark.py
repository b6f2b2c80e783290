"""Spark beside PostgreSQL: a process of its own, with both tables cached in memory (spark_peer.py)."""

import json
import os
import subprocess

from sessions import ROOT


class Spark:
    def __init__(self):
        subprocess.run([ROOT / "scripts/packages.sh", "openjdk-17-jre-headless"], check=True)
        subprocess.run([ROOT / "scripts/python.sh", "venv-spark"], check=True)
        python = ROOT / "target/venv-spark/bin/python"
        environment = os.environ | {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
        with open(ROOT / "target/spark.log", "w") as log:
            command = [python, ROOT / "bench/tables/spark_peer.py"]
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark ended: see {ROOT}/target/spark.log")
        return json.loads(line)

    def load(self, dims, keys, probes, counts):
        """Caches tables. dims and probes are the columns of a range i; counts gives the rows of each table of probes."""
        self._ask(dims=dims, keys=keys, probes=probes, counts=counts)

    def join(self, probes):
        """The sum, and the seconds that it took."""
        return tuple(self._ask(join=probes))
