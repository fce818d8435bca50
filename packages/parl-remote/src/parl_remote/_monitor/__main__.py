"""`python -m parl_remote._monitor`: the process that `launch` starts; users call `xparl monitor`."""

import sys

from parl_remote._monitor.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
