"""Set a package's version and date its changelog: `python tools/bump_version.py parl-remote 0.3.0`.

Changes `_version.py` and turns the changelog's "Unreleased" heading into the new version; the tag to set is printed.
"""

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=sorted(path.name for path in (ROOT / "packages").iterdir()))
    parser.add_argument("version", help="MAJOR.MINOR.PATCH, optionally with a1, b1 or rc1 behind it")
    arguments = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", arguments.version):
        parser.error(f"{arguments.version!r} is no version such as 0.3.0 or 0.3.0rc1")
    folder = ROOT / "packages" / arguments.package
    (version_file,) = folder.glob("src/*/_version.py")
    text = version_file.read_text()
    version_file.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{arguments.version}"', text))
    changelog = folder / "CHANGELOG.md"
    today = datetime.now(UTC).date().isoformat()
    heading = f"## Unreleased\n\n## {arguments.version} ({today})"
    changelog.write_text(changelog.read_text().replace("## Unreleased", heading, 1))
    print(f"git tag {arguments.package}-v{arguments.version}")


if __name__ == "__main__":
    main()
