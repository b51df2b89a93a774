"""``python -m deploy``: the same as the command ``tandem``."""

import sys

from deploy.cli import main

sys.exit(main())
