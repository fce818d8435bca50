"""The subject for PARL 2.2.1, which finds classes only in modules beside the program."""

from subject import Subject

import parl


@parl.remote_class
class Waiting(Subject):
    pass


@parl.remote_class(wait=False)
class Pipelined(Subject):
    pass
