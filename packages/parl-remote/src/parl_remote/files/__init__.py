"""Files and code of a program on their way to the hosts that its actors run on.

    in the program   selection (what distributed_files names), program (the own code and what it imports)
                       -> layout (where it lies in the job's folder) -> manifest
                       -> sending (asks the worker what it lacks, sends that)
    at the worker    worker.files: contents by their hash, kept for the next program, and the job's own copy

A worker that sees the program's own directories gets only what `distributed_files` names.
"""
