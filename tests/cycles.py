#!/usr/bin/env python3
"""Whether the modules of a crate import each other in a circle: cycles.py CRATE...

A module is what lib.rs declares, with all below it. What it names of its crate, `crate::other`, makes it depend on that
module; tests do not count, and neither does what lib.rs hands on. Names that lib.rs exports count as the module that they
come from.
"""

import pathlib
import re
import sys


def without_tests(text):
    """The source up to its unit tests, which stand at its end, without comments."""
    text = re.split(r"^#\[cfg\(test\)\]\nmod tests", text, maxsplit=1, flags=re.MULTILINE)[0]
    return re.sub(r"//.*", "", text)


def first_names(uses):
    """The names at which the paths behind `crate::` begin: of `{a::b, c}` both a and c."""
    if not uses.startswith("{"):
        return re.findall(r"^(?:r#)?(\w+)", uses)
    depth, names, start = 0, [], True
    for word in re.findall(r"\w+|[{},]|::", uses):
        if word == "{":
            depth += 1
            start = start or depth == 1
        elif word == "}":
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and word == ",":
            start = True
        elif depth == 1 and start and word != "::":
            names.append(word)
            start = False
    return names


def graph(crate):
    """For each module of the crate those that it depends on."""
    root = crate / "src/lib.rs"
    lib = without_tests(root.read_text())
    modules = set(re.findall(r"^\s*(?:pub(?:\([a-z]+\))? )?mod (\w+);", lib, re.MULTILINE))
    exports = {}
    for module, names in re.findall(r"^pub(?:\(crate\))? use (?:crate::|self::)?(\w+)::([^;]+);", lib, re.MULTILINE):
        exports |= dict.fromkeys(re.findall(r"\w+", names), module)
    depends = {}
    for module in sorted(modules):
        files = [crate / f"src/{module}.rs", *sorted((crate / f"src/{module}").rglob("*.rs"))]
        # A file of tests alone is declared as one.
        files = [file for file in files if file.exists() and file.name != "tests.rs"]
        found = set()
        for file in files:
            text = without_tests(file.read_text())
            for at in re.finditer(r"\bcrate::", text):
                found |= {exports.get(name, name) for name in first_names(text[at.end() : at.end() + 2000])}
            # From a module's own file, `super` is the crate.
            if file.parent == crate / "src":
                found |= {exports.get(name, name) for name in re.findall(r"\bsuper::(\w+)", text)}
        depends[module] = (found & modules) - {module}
    return depends


def cycles(depends):
    """Groups of modules of which each can be reached from each other."""
    def reached(start):
        seen, left = set(), [start]
        while left:
            for module in depends[left.pop()] - seen:
                seen.add(module)
                left.append(module)
        return seen

    reach = {module: reached(module) for module in depends}
    groups = {frozenset(other for other in reach[module] if module in reach[other]) for module in depends}
    return sorted(sorted(group) for group in groups if group)


def main():
    failed = False
    for crate in map(pathlib.Path, sys.argv[1:]):
        depends = graph(crate)
        for group in cycles(depends):
            failed = True
            print(f"{crate}: these modules import each other in a circle:", file=sys.stderr)
            for module in group:
                print(f"  {module} -> {', '.join(sorted(depends[module] & set(group)))}", file=sys.stderr)
    sys.exit(failed)


main()
