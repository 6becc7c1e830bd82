"""The import statements at the top of a script, and the packages that they need."""

import ast
import re
import sys

from bookmaker.script.analyse.imports import imported_inside

# Modules whose package has another name.
_PACKAGES = {
    "PIL": "pillow",
    "big_o": "big-O",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "mpl_toolkits": "matplotlib",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}


def grouped(statements: list[str], before_packages: str = "") -> str:
    """The import section of the script: future, standard library, packages; merged, sorted.

    before_packages: code that stands between the last two.
    """
    plain, from_ = set(), {}
    for statement in statements:
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.Import):
            plain.add(statement)
        else:
            from_.setdefault("." * node.level + (node.module or ""), set()).add(
                ast.unparse(node.names[0])
            )
    groups: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for statement in sorted(plain, key=lambda s: (_module_of(s).lower(), s)):
        groups[_group(_module_of(statement))].append(statement)
    for module, names in sorted(from_.items(), key=lambda item: item[0].lower()):
        groups[_group(module)].append(_from_line(module, sorted(names, key=_isort_key)))
    sections = ["\n".join(groups[number]) for number in sorted(groups)]
    return "\n\n".join(filter(None, [*sections[:2], before_packages, sections[2]]))


def _isort_key(name: str):
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name.lower()


def _from_line(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 100:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _module_of(statement: str) -> str:
    return statement.split()[1]


def _group(module: str) -> int:
    if module == "__future__":
        return 0
    return 1 if module.split(".")[0] in sys.stdlib_module_names else 2


def packages(statements: list[str], code: list[str] = ()) -> list[str]:
    """The names, on the package index, of what the statements and functions in `code` import."""
    # Some code is the text of another program.
    text = "\n".join(code)
    hidden = re.findall(r"^ *import .*?\b(pygraphviz|pynvml)\b", text, re.MULTILINE)
    hidden += re.findall(r'\bfind_spec\("(\w+)"\)', text)  # of which only files are read
    modules = [_module_of(statement) for statement in statements]
    modules += [module for each in code for module in imported_inside(each)]
    names = {module.split(".")[0] for module in [*modules, *hidden]}
    names -= set(sys.stdlib_module_names) | {"", "__future__", "ranklab"}
    return sorted({_PACKAGES.get(name, name) for name in names}, key=str.lower)
