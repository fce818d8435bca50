"""Transfer of a program's files and code to the hosts of its actors.

    in the program   selection (what distributed_files names), program (the own code and what it imports)
                       -> manifest (where it lies in the job's folder)
                       -> upload (sends the contents that the worker lacks)
    at the worker    worker.files: contents by their hash, kept for the next program, and the job's own copy

A worker that sees the program's own directories gets only the files of `distributed_files`.
"""
