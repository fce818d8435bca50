"""Set a package's version and write its changelog: `hatch run lint:python tools/bump_version.py parl-remote 0.3.0`.

Changes `_version.py`, moves the fragments of `changes/` into `CHANGELOG.md` and prints the tag to set.
"""

import argparse
import re

import changelog


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=changelog.PACKAGES)
    parser.add_argument("version", help="MAJOR.MINOR.PATCH, optionally with a1, b1 or rc1 behind it")
    arguments = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", arguments.version):
        parser.error(f"{arguments.version!r} is no version such as 0.3.0 or 0.3.0rc1")
    if wrong := changelog.problems(arguments.package):
        parser.error("\n".join(wrong))
    (version_file,) = (changelog.ROOT / "packages" / arguments.package).glob("src/*/_version.py")
    text = version_file.read_text()
    version_file.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{arguments.version}"', text))
    changelog.build(arguments.package, arguments.version, draft=False)
    print(f"git tag {arguments.package}-v{arguments.version}")


if __name__ == "__main__":
    main()
