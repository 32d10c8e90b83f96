"""Compare what the library decides and says with what is on record.

python -m tests.golden [SECTION ...]             # exit status 1: something is different
python -m tests.golden [SECTION ...] --write     # put it on record, for the JAX installed
python -m tests.golden SECTION --print WORD      # what is there now of titles with the word
"""

import argparse
import os
import sys

from tests.flags import FAST

# JAX reads both variables when it is imported.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = FAST

from tests.golden import outline, records, sections


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections.ALL))
    parser.add_argument("--write", action="store_true", help="put it on record")
    parser.add_argument("--print", metavar="WORD", help="every equation of programs so called")
    options = parser.parse_args()
    outline.WHOLE = options.print is not None
    different = False
    for name in options.sections or sections.ALL:
        found = sections.ALL[name]()
        if options.print is not None:
            some = ((title, lines) for title, lines in found if options.print in title)
            print(*records.written(some), sep="\n")
        elif options.write:
            records.write(name, records.written(found))
        elif text := records.difference(name, records.written(found)):
            different = True
            print(f"{name}: -on record +now\n{text}\n")
    return int(different)


if __name__ == "__main__":
    sys.exit(main())
