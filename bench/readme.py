"""The part of bench/README.md that a benchmark writes: what stands between its markers."""

import pathlib

README = pathlib.Path(__file__).parent / "README.md"


def write_section(name, text):
    before, _, rest = README.read_text().partition(f"<!-- {name} -->\n")
    _, _, after = rest.partition(f"<!-- /{name} -->\n")
    README.write_text(f"{before}<!-- {name} -->\n{text}\n<!-- /{name} -->\n{after}")
