"""`make book`: execute every chapter, build the site, say where it is."""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from filelock import FileLock

from bookmaker.errors import BookError, FormError
from bookmaker.folders import HERE, Folders
from bookmaker.site.build import builder
from bookmaker.site.execute import Outcome, run_chapter
from bookmaker.site.stage import stage


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0 if everything worked."""
    options = _parser().parse_args(arguments)
    folders = Folders(options.root.resolve())
    try:
        failed = execute_all(folders)
        if failed:
            _say(f"{failed} of {len(folders.chapters())} chapters failed. The site is not built.")
            return 1
        if not options.execute_only:
            build_site(folders)
    except (BookError, FormError) as error:
        _say(f"{error}\nThe site is not built.")
        return 1
    except KeyboardInterrupt:
        logging.getLogger("asyncio").disabled = True  # what nbclient's tasks, cut off, say yet
        _say("Interrupted. The chapters that were done are kept.")
        return 130
    return 0


def execute_all(folders: Folders) -> int:
    """Execute the chapters that need it, a line for each; return how many failed."""
    chapters = folders.chapters()
    if not chapters:
        raise BookError(f"There is no chapter in {folders.book}.")
    width = max(len(path.stem) for path in chapters)
    failures = 0
    for path in chapters:
        print(f"{path.stem:{width}} … ", end="", flush=True)
        target = folders.executed / f"{path.stem}.ipynb"
        try:
            outcome = run_chapter(path, target, folders=folders)
        except FormError as error:
            failures += 1
            print("cannot be read", flush=True)
            _say(f"\n{error}\n")
            continue
        print(_verdict(outcome), flush=True)
        if outcome.failure:
            failures += 1
            _say(f"\n{outcome.name} failed in {outcome.failure}\n")
    return failures


def build_site(folders: Folders) -> None:
    """Stage the pages and make the site of them."""
    start = time.monotonic()
    width = max(len(path.stem) for path in folders.chapters())
    print(f"{'the site':{width}} … ", end="", flush=True)
    try:
        with FileLock(folders.build / "site.lock"), builder(folders) as build:  # one at a time
            stage(folders)
            build()
    except (BookError, FormError):
        print("failed", flush=True)
        raise
    print(f"{time.monotonic() - start:.1f} s", flush=True)
    start_page = folders.html / "index.html"
    print(f"\nOpen {os.path.relpath(start_page)} in a browser:\n{start_page.as_uri()}")


def _verdict(outcome: Outcome) -> str:
    if outcome.failure:
        return f"failed after {outcome.seconds:.1f} s"
    return f"{outcome.seconds:.1f} s" if outcome.executed else "unchanged"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bookmaker.site", description=__doc__)
    parser.add_argument(
        "--execute-only", action="store_true", help="execute the chapters, build no site"
    )
    parser.add_argument(
        "--root", type=Path, default=HERE.root, metavar="DIR", help="the book's folder"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
