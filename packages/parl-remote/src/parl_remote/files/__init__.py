"""Files and code of a program on their way to the hosts that its actors run on.

    in the program   chosen (what distributed_files names), import_closure (what the code imports)
                       -> plan (where it lies in the job's folder) -> Manifest
                       -> sending (asks the worker what it lacks, sends that)
    at the worker    blobs (contents by their hash, kept for the next program) -> folder (the job's own copy)

A worker that sees the program's own directories gets only what `distributed_files` names.
"""
