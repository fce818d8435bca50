"""`python -m parl_remote.monitor`: the process that `launch` starts; users call `xparl monitor`."""

import sys

from parl_remote.monitor.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
