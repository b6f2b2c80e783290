"""Whether modules of a crate import each other in a circle: imports.py CRATE_FOLDER...

A module is a file. It imports what its `use` declarations and paths name, a re-export included; that it declares its children
is no import. Unit tests are left out.
"""

import pathlib
import re
import sys

TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{$.*?^\}$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"//.*")
USE = re.compile(r"^\s*(?:pub(?:\([a-z ]+\))? )?use ([^;]+);", re.MULTILINE)
PATH = re.compile(r"(?<![\w$:])((?:crate|super)(?:::\w+)+)")


def leaves(tree):
    """The paths of a `use` declaration, braces expanded."""
    tree = tree.strip()
    start = tree.find("{")
    if start < 0:
        return [re.sub(r" as \w+$", "", tree)]
    prefix, found, depth, begin = tree[:start], [], 0, start + 1
    for position in range(start, len(tree)):
        letter = tree[position]
        depth += (letter == "{") - (letter == "}")
        if (letter == "," and depth == 1) or depth == 0:
            if tree[begin:position].strip():
                found += [prefix + leaf for leaf in leaves(tree[begin:position])]
            begin = position + 1
            if depth == 0:
                break
    return found


def modules_of(folder):
    """Files by the path of their module; the root's is empty."""
    source = folder / "src"
    found = {}
    for file in sorted(source.rglob("*.rs")):
        parts = file.relative_to(source).with_suffix("").parts
        if parts[-1] == "mod":
            parts = parts[:-1]
        if parts != ("main",):
            found[() if parts == ("lib",) else parts] = file
    return found


def imports_of(module, file, modules):
    """The modules that one imports."""
    text = TESTS.sub("", COMMENT.sub("", file.read_text()))
    paths = [leaf for tree in USE.findall(text) for leaf in leaves(tree)] + PATH.findall(USE.sub("", text))
    found = set()
    for path in paths:
        parts = [part for part in path.split("::") if part]
        if parts[0] == "crate":
            base, parts = (), parts[1:]
        elif parts[0] == "super":
            base = module
            while parts and parts[0] == "super":
                base, parts = base[:-1], parts[1:]
        elif (*module, parts[0]) in modules:
            base = module
        else:
            continue
        target = base
        for part in parts:
            if (*target, part) not in modules:
                break
            target = (*target, part)
        if target != module:
            found.add(target)
    return found


def cycle_in(graph):
    """A circle of modules, if there is one."""
    done = set()

    def visit(module, way):
        if module in way:
            return way[way.index(module):] + [module]
        if module in done:
            return None
        for target in sorted(graph[module]):
            if found := visit(target, way + [module]):
                return found
        done.add(module)
        return None

    return next((found for module in sorted(graph) if (found := visit(module, []))), None)


def main():
    failed = False
    for folder in map(pathlib.Path, sys.argv[1:]):
        modules = modules_of(folder)
        graph = {module: imports_of(module, file, modules) for module, file in modules.items()}
        if not graph:
            sys.exit(f"{folder}: there is no module")
        if found := cycle_in(graph):
            failed = True
            print(f"{folder}: " + " -> ".join("::".join(("crate", *module)) for module in found))
    if failed:
        sys.exit("modules import each other in a circle")
    print("no modules import each other in a circle")


if __name__ == "__main__":
    main()
